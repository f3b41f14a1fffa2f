"""Submissions of schedules: what they improve, and the records that they become."""

import dataclasses
import gzip
import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from gradweave.bounds.certificates import check_certificate
from gradweave.errors import InvalidScheduleError
from gradweave.library.instance import EXACT_WITHIN, Instance
from gradweave.library.judging import Judged, identity, judge
from gradweave.library.store import MAX_PACKED_BYTES, Library
from gradweave.schedules.file import from_bytes
from gradweave.schedules.schedule import Schedule

MAX_KEPT_BYTES = 1_000_000
"""Largest packed schedule file that the library stores, to keep the library small."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The value of a submission for one instance."""

    instance: Instance
    judged: Judged
    data: Mapping[str, Any]
    """The file's content."""

    @property
    def improves(self) -> bool:
        """Whether its schedule beats the best known schedule."""
        best = Fraction(self.instance.record.value)
        return Fraction(self.judged.value) < best * (1 - EXACT_WITHIN)

    @property
    def equals(self) -> bool:
        """Whether its schedule equals the best known value, up to rounding."""
        best = Fraction(self.instance.record.value)
        return abs(Fraction(self.judged.value) - best) <= best * EXACT_WITHIN

    @property
    def raises_bound(self) -> bool:
        """Whether one of its certificates exceeds the best known bound."""
        return self.judged.least > Fraction(self.instance.record.bound)

    @property
    def verdict(self) -> str:
        """``improves``, ``raises the bound``, ``equals`` or ``behind``."""
        if self.improves:
            return "improves"
        if self.raises_bound:
            return "raises the bound"
        return "equals" if self.equals else "behind"


def weigh(library: Library, data: Mapping[str, Any], instance: str | None = None) -> list[Outcome]:
    """Judges a submission for each instance that it matches.

    Args:
        library: the library with the best known results.
        data: the file's content, not trusted.
        instance: id of the only instance that it is meant for; by default all instances of its
            network, collective and demand.

    Raises:
        InvalidScheduleError: it is invalid, breaks the rules of all of them, or matches none.
    """
    if instance is not None:
        chosen = library.instance(instance)
        return [Outcome(chosen, judge(data, chosen), data)]
    found = identity(data)
    meant = [
        one
        for one in library.instances.values()
        if (one.network, one.demand) == (found.network, found.demand)
        and (found.demand is not None or one.collective == found.collective)
    ]
    if not meant:
        name = found.collective.replace("_", "-")
        raise InvalidScheduleError(f"no instance of the library has this network and {name}")
    outcomes, faults = [], []
    for one in meant:
        try:
            outcomes.append(Outcome(one, judge(data, one), data))
        except InvalidScheduleError as error:
            faults.append(error)
    if not outcomes:
        raise faults[0]
    return outcomes


def accept(library: Library, outcome: Outcome, by: str, how: str, date: str) -> Instance:
    """Makes a submission the record if it improves the schedule or the bound; keeps the history.

    The stored file has the valid certificates of the old and the new file, so that it proves the
    better bound, regardless of who found it.

    Args:
        library: a library in a folder.
        outcome: a result of `weigh`.
        by: who found the schedule.
        how: how it was found.
        date: YYYY-MM-DD.

    Returns:
        The updated instance.

    Raises:
        FileError: it cannot be written.
        InvalidScheduleError: it improves nothing, or is too large to store.
    """
    if not (outcome.improves or outcome.raises_bound):
        raise InvalidScheduleError(f"{outcome.instance.id}: it improves nothing")
    instance, old = outcome.instance, outcome.instance.record
    best = library.schedule(instance)
    data = outcome.data if outcome.improves else best
    proofs = [
        one
        for one in (outcome.judged.certificate, judge(best, instance).certificate)
        if one is not None
    ]
    packed = pack(data, proofs)
    record = dataclasses.replace(old, sha256=hashlib.sha256(packed).hexdigest())
    if outcome.improves:
        value = outcome.judged.value
        record = dataclasses.replace(record, value=value, by=by, how=how, date=date)
    if outcome.raises_bound:
        reason = reason_of(outcome.data, outcome.judged.certificate)
        bound = str(outcome.judged.least)
        record = dataclasses.replace(record, bound=bound, reason=reason)
    made = dataclasses.replace(instance, record=record, history=(old, *instance.history))
    library.keep(made, packed)
    return made


def first_record(data: Mapping[str, Any], instance: Instance) -> tuple[Instance, bytes]:
    """The first record of an instance, and its file.

    Args:
        data: a schedule's file with certificates.
        instance: its record says who found it, how and when; the figures are set here.
    """
    judged = judge(data, instance)
    packed = pack(data, [judged.certificate] if judged.certificate is not None else [])
    record = dataclasses.replace(
        instance.record,
        value=judged.value,
        bound=str(judged.least),
        sha256=hashlib.sha256(packed).hexdigest(),
        reason=reason_of(data, judged.certificate),
    )
    return dataclasses.replace(instance, record=record), packed


def schedule_of(data: Mapping[str, Any], name: str = "schedule") -> Schedule:
    """The schedule in a file's content, without its certificates.

    Raises:
        FileError: it contains no schedule.
    """
    return from_bytes(json.dumps({**data, "certificates": []}).encode(), name)


def reason_of(data: Mapping[str, Any], certificate: Mapping[str, Any] | None) -> str:
    """Why a certificate's bound holds, in a sentence; empty without a certificate."""
    if certificate is None:
        return ""
    schedule = schedule_of(data)
    return check_certificate(certificate, schedule.topology, schedule.demand).reason


def pack(data: Mapping[str, Any], certificates: list[Mapping[str, Any]]) -> bytes:
    """A schedule's file with these certificates, compressed deterministically.

    Raises:
        InvalidScheduleError: it is too large to store.
    """
    different = [one for at, one in enumerate(certificates) if one not in certificates[:at]]
    content = json.dumps({**data, "certificates": different}, separators=(",", ":")).encode()
    packed = gzip.compress(content, compresslevel=9, mtime=0)
    if len(packed) > min(MAX_KEPT_BYTES, MAX_PACKED_BYTES):
        raise InvalidScheduleError(
            f"its file has {len(packed):,} bytes, compressed; the library keeps at most "
            f"{MAX_KEPT_BYTES:,}: take fewer pieces"
        )
    return packed
