"""Best known schedules and bounds of frozen instances: read, checked, submitted, frozen."""

from gradweave.library.freezing import freeze
from gradweave.library.instance import Instance, Record
from gradweave.library.judging import Judged, judge
from gradweave.library.store import Library, open_library
from gradweave.library.submission import Outcome, accept, weigh

__all__ = [
    "Instance",
    "Judged",
    "Library",
    "Outcome",
    "Record",
    "accept",
    "freeze",
    "judge",
    "open_library",
    "weigh",
]
