"""Best known schedules and bounds of frozen instances: reading, checking, submitting, freezing."""

from gradweave.library.freezing import freeze
from gradweave.library.instance import Record
from gradweave.library.judging import judge
from gradweave.library.store import Library, open_library

__all__ = [
    "Library",
    "Record",
    "freeze",
    "judge",
    "open_library",
]
