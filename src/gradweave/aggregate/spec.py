"""Aggregations in words: ``dcd_psgd:bits=4,network=torus:2x4``."""

import dataclasses
import difflib
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optax

from gradweave.aggregate import exact, gossip
from gradweave.aggregate.compressors import COMPRESSORS, Compressor
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.errors import OptionError, ScheduleError, SpecError
from gradweave.execute.jax_mesh import AXIS, AxisName
from gradweave.schedule.file import load
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.solve import solve
from gradweave.topology.spec import UNNAMED, parse_spec
from gradweave.topology.spec import from_spec as network_from_spec
from gradweave.topology.topology import Topology

EXACT = ("mean", "ring", "parameter_server", "scheduled")
"""Aggregations of gradients: all workers keep the same parameters."""
COMPRESSED = ("dcd_psgd", "ecd_psgd", "choco_sgd", "naive_psgd")
GOSSIP = ("d_psgd", *COMPRESSED)
"""Mixing of parameters: each worker has its own."""
_MIXINGS: dict[str, Callable[[Topology], MixingMatrix]] = {
    "weights": MixingMatrix.metropolis_hastings,
    "matchings": MixingMatrix.in_matchings,
    "clusters": MixingMatrix.in_clusters,
}
_NETWORK = "network="


@dataclasses.dataclass(frozen=True)
class Aggregation:
    """How workers combine what they learn: makes their optimizer from that of one worker alone."""

    spec: str
    """As it was given."""
    workers: int
    exact: bool
    """Whether all workers keep the same parameters."""
    wrap: Callable[[optax.GradientTransformation], optax.GradientTransformation] = (
        dataclasses.field(repr=False, compare=False)
    )

    def __call__(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer to use inside `jax.shard_map`."""
        return self.wrap(optimizer)


def from_spec(text: str, workers: int, axis_name: AxisName = AXIS) -> Aggregation:
    """Makes the aggregation that a specification describes.

    Args:
        text: ``mean``, ``ring``, ``parameter_server`` (``parameter_server:server=2``);
            ``scheduled:`` and a schedule's file, or a network, for which one is found now;
            ``d_psgd``, ``dcd_psgd``, ``ecd_psgd``, ``choco_sgd`` or ``naive_psgd``, with options:
            ``compressor`` (max_norm, grid, random_k, top_k, exact) and that one's own (``bits``,
            ``block``, ``step``, ``share``), ``mixing`` (weights, matchings, clusters),
            ``local_steps``, ``seed``, ``strictness``, ``consensus``, and last ``network=`` and the
            workers' network, a ring if not given.
        workers: N, of which the axis has as many devices.
        axis_name: of the workers' axis.

    Raises:
        SpecError: the text is not understood.
        OptionError: it is understood, but has a value that is not taken, or is for another number
            of workers.

    >>> from_spec("dcd_psgd:bits=4,network=torus:2x4", 8)
    Aggregation(spec='dcd_psgd:bits=4,network=torus:2x4', workers=8, exact=False)
    """
    if workers < 1:
        raise OptionError(f"workers: expected at least 1, got {workers}")
    name = text.partition(":")[0].strip().lower().replace("-", "_")
    if name == "scheduled":
        first = _scheduled(text.partition(":")[2].strip(), workers, axis_name)
    elif name in EXACT:
        first = _exact(name, text, workers, axis_name)
    elif name in GOSSIP:
        return Aggregation(text, workers, False, _gossip(name, text, workers, axis_name))
    else:
        known = (*EXACT, *GOSSIP)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SpecError(f"no aggregation {name!r:.60}; {hint}there are {', '.join(known)}")
    return Aggregation(text, workers, True, lambda optimizer: optax.chain(first, optimizer))


def _exact(name: str, text: str, workers: int, axis_name: AxisName) -> optax.GradientTransformation:
    """Mean, ring or parameter server."""
    options = _Options(name, parse_spec(text)[1])
    if name == "parameter_server":
        server = options.take("server", int, 0)
        options.done()
        if not 0 <= server < workers:
            raise OptionError(
                f"parameter_server: server: expected 0 to {workers - 1}, got {server}"
            )
        return exact.parameter_server(axis_name, server=server)
    options.done()
    return exact.mean(axis_name) if name == "mean" else exact.ring(axis_name)


def _scheduled(what: str, workers: int, axis_name: AxisName) -> optax.GradientTransformation:
    """By a schedule from a file, or one found now."""
    if not what:
        raise SpecError(
            "scheduled: expected a schedule's file or a network, as in scheduled:bcube4.json or "
            "scheduled:bcube:n=4,k=1"
        )
    schedule: Schedule = (
        load(what) if Path(what).is_file() else solve(network_from_spec(what)).schedule
    )
    found = schedule.topology.num_servers
    if found != workers:
        raise ScheduleError(
            f"scheduled: {schedule.topology.name} has {found} servers, but there are {workers} "
            f"workers; take {found} workers or another network"
        )
    return exact.scheduled(schedule, axis_name)


def _gossip(
    name: str, text: str, workers: int, axis_name: AxisName
) -> Callable[[optax.GradientTransformation], optax.GradientTransformation]:
    """A method that mixes parameters."""
    head, given, network = text.partition(_NETWORK)
    options = _Options(name, parse_spec(head.rstrip().rstrip(",:"))[1])
    mixing = _mixing(options.take("mixing", str, "weights"), network if given else None, workers)
    more: dict[str, Any] = {"local_steps": options.take("local_steps", int, 1)}
    if name != "naive_psgd":
        more["strictness"] = options.take("strictness", str, "warn")
    if name == "choco_sgd":
        more["consensus"] = options.take("consensus", float, 0.3)
    make = getattr(gossip, name)
    if name == "d_psgd":
        options.done()
        return lambda optimizer: make(optimizer, mixing, axis_name, **more)
    more["seed"] = options.take("seed", int, 0)
    compressor = _compressor(options)
    options.done()
    return lambda optimizer: make(optimizer, mixing, compressor, axis_name, **more)


def _mixing(kind: str, network: str | None, workers: int) -> MixingMatrix:
    """The mixing matrix of a network, or of a ring."""
    if kind not in _MIXINGS:
        raise OptionError(f"mixing: expected {', '.join(_MIXINGS)}, got {kind!r:.60}")
    if network is None and (kind == "weights" or workers < 3):
        return MixingMatrix.ring(workers)
    topology = network_from_spec(network or f"ring:{workers}")
    if topology.num_servers != workers:
        raise OptionError(
            f"network: {topology.name} has {topology.num_servers} servers, but there are {workers} "
            "workers"
        )
    return _MIXINGS[kind](topology)


def _compressor(options: "_Options") -> Compressor:
    """The compressor that options describe."""
    name = options.take("compressor", str, "max_norm")
    kind = COMPRESSORS.get(name)
    if kind is None:
        raise OptionError(f"compressor: expected {', '.join(COMPRESSORS)}, got {name!r:.60}")
    values = {}
    types = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        if field.name == "block":
            block = options.take("block", str, str(field.default))
            values["block"] = None if block.lower() == "none" else options.read("block", int, block)
        else:
            values[field.name] = options.take(field.name, types[field.name], field.default)
    return kind(**values)


class _Options:
    """Values by name, each of which somebody has to ask for."""

    def __init__(self, name: str, values: dict[str, str]) -> None:
        self._name = name
        self._values = dict(values)
        self._known: list[str] = []

    def take(self, key: str, kind: type, usual: Any) -> Any:
        """A value, or what is usual."""
        self._known.append(key)
        if key not in self._values:
            return usual
        return self.read(key, kind, self._values.pop(key))

    def read(self, key: str, kind: type, text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            words = {int: "a whole number", float: "a number"}[kind]
            raise OptionError(f"{self._name}: {key}: expected {words}, got {text!r:.60}") from None

    def done(self) -> None:
        """Refuses what nobody asked for.

        Raises:
            SpecError: naming it.
        """
        for key in self._values:
            shown = "a value without a key" if key == UNNAMED else f"{key!r:.60}"
            known = f"options are {', '.join(self._known)}" if self._known else "it has no options"
            raise SpecError(f"{self._name}: {shown} is no option of it; {known}")
