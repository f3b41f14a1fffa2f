"""The value of a schedule's file for an instance, determined only by `gradweave_check`.

The verifier and the simulator of this package are not used, so that a mistake in the code that
makes schedules cannot also approve them.
"""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import gradweave_check as checker
from gradweave.common.wording import listed
from gradweave.errors import InvalidScheduleError
from gradweave.library.instance import ROUNDS, Instance

_FAULTS = (checker.Wrong, RecursionError, MemoryError, *checker.BROKEN)


@dataclasses.dataclass(frozen=True)
class Identity:
    """The network, collective and demand of a file, which determine its possible instances."""

    network: str
    collective: str
    """The collective as in the file: ``demand`` if it has a demand."""
    demand: str | None


@dataclasses.dataclass(frozen=True)
class Judged:
    """A valid schedule of an instance, and what its file proves."""

    value: float
    """Rounds or seconds."""
    least: Fraction
    """The highest bound that one of its certificates proves for the instance; 0 if none does."""
    certificate: Mapping[str, Any] | None
    refused: tuple[str, ...]
    """Reasons why other certificates do not count."""


def identity(data: Mapping[str, Any]) -> Identity:
    """The network, collective and demand of a file.

    Raises:
        InvalidScheduleError: it is not a schedule of a network.
    """
    try:
        network = checker.Network(data["topology"])
        asked = checker.Asked(data["collective"], data.get("demand"), network)
    except _FAULTS as error:
        raise InvalidScheduleError(_why(error)) from error
    return Identity(network.hash, asked.name, asked.hash)


def judge(data: Mapping[str, Any], instance: Instance) -> Judged:
    """Replays a schedule, and recounts its certificates.

    Args:
        data: a schedule's decoded file, not trusted.
        instance: the instance that it is meant for.

    Raises:
        InvalidScheduleError: it belongs to another network or demand, is invalid, or takes
            liberties that the instance forbids; one line says which.
    """
    try:
        network = checker.Network(data["topology"])
        asked = checker.Asked(data["collective"], data.get("demand"), network)
        _of_instance(network, asked, instance)
        plan = checker.Plan(data, network, asked, False)
        unit = 1 if asked.demand else instance.bytes
        timed = instance.model != ROUNDS
        value = plan.seconds(network, unit, [0] * len(network.servers)) if timed else plan.rounds
    except _FAULTS as error:
        raise InvalidScheduleError(_why(error)) from error
    _by_the_rules(plan, instance)
    least, best, refused = Fraction(0), None, []
    certificates = data.get("certificates") or []
    if not isinstance(certificates, list):
        raise InvalidScheduleError("certificates: expected a list")
    for number, one in enumerate(certificates):
        try:
            proof = checker.Proof(one, network, asked)
            if (why := _not_for(proof, plan, instance)) is not None:
                refused.append(f"certificate {number}: {why}")
            elif proof.least > least:
                least, best = proof.least, one
        except _FAULTS as error:
            refused.append(f"certificate {number}: refused: {_why(error)}")
    return Judged(float(value), least, best, tuple(refused))


def _why(error: BaseException) -> str:
    if isinstance(error, checker.Wrong):
        return str(error)
    return f"not a schedule's file: {type(error).__name__}: {error}"[:300]


def _of_instance(network: Any, asked: Any, instance: Instance) -> None:
    checker.need(network.hash == instance.network, f"its network is not that of {instance.id}")
    same = asked.hash == instance.demand
    same &= asked.demand or asked.name == instance.collective
    checker.need(same, f"its collective or demand is not that of {instance.id}")


def _by_the_rules(plan: Any, instance: Instance) -> None:
    if taken := sorted(plan.liberties & instance.rules):
        raise InvalidScheduleError(f"valid, but against the instance's rules: {listed(taken)}")
    if instance.model == ROUNDS and min(plan.pieces) < 1:
        raise InvalidScheduleError("valid, but some servers root no piece: rounds do not compare")


def _not_for(proof: Any, plan: Any, instance: Instance) -> str | None:
    """Why a bound does not apply to the instance, or None if it does."""
    if proof.unit != instance.unit:
        return f"of {proof.unit}"
    if instance.unit != ROUNDS and instance.demand is None and proof.bytes != instance.bytes:
        return f"for {float(proof.bytes):g} bytes, not {instance.bytes:,}"
    if any(proof.ready):
        return "for servers that are late"
    if more := sorted(proof.forbids - instance.rules):
        return f"it does not hold where {listed(more)}, which the instance allows"
    if instance.model == ROUNDS and any(least > 1 for least in proof.pieces):
        return "for more pieces than one a server"
    return None
