"""Best known schedules and bounds of frozen instances: reading, checking, submitting, freezing."""

from gradweave.library.freezing import freeze
from gradweave.library.instance import Record
from gradweave.library.judging import judge
from gradweave.library.store import Library, open_library
from gradweave.library.submission import accept, weigh

__all__ = [
    "Library",
    "Record",
    "accept",
    "freeze",
    "judge",
    "open_library",
    "weigh",
]
