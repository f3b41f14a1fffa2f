"""Aggregations in words: ``dcd_psgd:bits=4,network=torus:2x4``.

Words for an exact aggregation are read and checked without JAX, which is imported where one is put
in front of an optimizer.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradweave.aggregate.mixing import MixingMatrix
from gradweave.checks import did_you_mean
from gradweave.errors import OptionError, ScheduleError, SpecError
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.program import check_all_reduce
from gradweave.schedule.file import load
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.solve.solve import solve
from gradweave.topology.spec import UNNAMED, parse_spec
from gradweave.topology.spec import from_spec as network_from_spec
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    import optax

    from gradweave.aggregate.compressors import Compressor

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


Wrap = Callable[["optax.GradientTransformation"], "optax.GradientTransformation"]
"""One worker's optimizer -> that of one of several."""


@dataclasses.dataclass(frozen=True)
class Aggregation:
    """How workers combine what they learn: makes their optimizer from that of one worker alone."""

    spec: str
    """As it was given."""
    workers: int
    exact: bool
    """Whether all workers keep the same parameters."""
    wrap: "Wrap" = dataclasses.field(repr=False, compare=False)

    def __call__(self, optimizer: "optax.GradientTransformation") -> "optax.GradientTransformation":
        """The optimizer to use inside `jax.shard_map`."""
        return self.wrap(optimizer)


def from_spec(
    text: str, workers: int, axis_name: AxisName = AXIS, *, same_data: bool = False
) -> Aggregation:
    """Makes the aggregation that a specification describes.

    Args:
        text: ``mean``, ``ring``, ``parameter_server`` (``parameter_server:server=2``);
            ``scheduled:`` and a schedule's file, or a network, for which one is found now;
            ``d_psgd``, ``dcd_psgd``, ``ecd_psgd``, ``choco_sgd`` or ``naive_psgd``, with options:
            ``compressor`` (max_norm, grid, random_k, random_k_unscaled, top_k,
            exact) and that one's own (``bits``, ``block``, ``step``, ``share``), ``mixing``
            (weights, matchings, clusters), ``local_steps``, ``seed``, ``strictness``,
            ``consensus``, and last ``network=`` and the workers' network, a ring if not given.
        workers: N, of which the axis has as many devices.
        axis_name: of the workers' axis.
        same_data: whether all workers' data are drawn alike, see `gradweave.aggregate.check`.

    Raises:
        SpecError: the text is not understood.
        OptionError: it is understood, but has a value that is not taken, or is for another number
            of workers.

    >>> from_spec("dcd_psgd:bits=4,network=torus:2x4", 8)
    Aggregation(spec='dcd_psgd:bits=4,network=torus:2x4', workers=8, exact=False)
    """
    if workers < 1:
        raise OptionError(f"workers: expected at least 1, got {workers}")
    name = _name(text)
    if name == "scheduled":
        return _scheduled(text, workers, axis_name)
    if name in EXACT:
        return Aggregation(text, workers, True, _first(_exact(name, text, workers, axis_name)))
    if name in GOSSIP:
        return Aggregation(text, workers, False, _gossip(name, text, workers, axis_name, same_data))
    raise _unknown(name)


def is_exact(text: str) -> bool:
    """Whether a specification is of an aggregation that keeps all workers' parameters the same.

    Raises:
        SpecError: it is of none that there is.
    """
    name = _name(text)
    if name not in (*EXACT, *GOSSIP):
        raise _unknown(name)
    return name in EXACT


def _name(text: str) -> str:
    return text.partition(":")[0].strip().lower().replace("-", "_")


def _unknown(name: str) -> SpecError:
    known = (*EXACT, *GOSSIP)
    hint = did_you_mean(name, known)
    return SpecError(f"no aggregation {name!r:.60}; {hint}there are {', '.join(known)}")


def by_schedule(
    schedule: Schedule, workers: int, axis_name: AxisName = AXIS, *, spec: str = "scheduled"
) -> Aggregation:
    """The aggregation that `from_spec` makes of ``scheduled:`` and a schedule's file.

    Args:
        schedule: an all-reduce.
        workers: N, of which the axis has as many devices.
        axis_name: of the workers' axis.
        spec: what it is to be called.

    Raises:
        ScheduleError: it is for another number of workers, or for one stage alone.
    """
    _check_servers(schedule.topology, workers)
    check_all_reduce(schedule)

    def made() -> "optax.GradientTransformation":
        from gradweave.aggregate import exact

        return exact.scheduled(schedule, axis_name)

    return Aggregation(spec, workers, True, _first(made))


def network_of(text: str) -> Topology | None:
    """The network of ``scheduled:`` and a network; None of any other specification.

    Raises:
        SpecError: where neither a network nor a file is named, or the network is not understood.
    """
    what = text.partition(":")[2]
    if _name(text) != "scheduled":
        return None
    if not what.strip():
        raise SpecError(
            "scheduled: expected a schedule's file or a network, as in scheduled:bcube4.json or "
            "scheduled:bcube:n=4,k=1"
        )
    return None if _file(text).is_file() else network_from_spec(what.strip())


def _file(text: str) -> Path:
    """What ``scheduled:`` is followed by, as a file's name."""
    return Path(text.partition(":")[2].strip())


def _first(made: "Callable[[], optax.GradientTransformation]") -> Wrap:
    """Puts an average of gradients, made when it is needed, in front of an optimizer."""

    def wrap(optimizer: "optax.GradientTransformation") -> "optax.GradientTransformation":
        import optax

        return optax.chain(made(), optimizer)

    return wrap


def _exact(
    name: str, text: str, workers: int, axis_name: AxisName
) -> "Callable[[], optax.GradientTransformation]":
    """Mean, ring or parameter server."""
    options = _Options(name, parse_spec(text)[1])
    more: dict[str, Any] = {}
    if name == "parameter_server":
        server = more["server"] = options.take("server", int, 0)
        if not 0 <= server < workers:
            raise OptionError(
                f"parameter_server: server: expected 0 to {workers - 1}, got {server}"
            )
    options.done()

    def made() -> "optax.GradientTransformation":
        from gradweave.aggregate import exact

        return getattr(exact, name)(axis_name, **more)

    return made


def _scheduled(text: str, workers: int, axis_name: AxisName) -> Aggregation:
    """By a schedule from a file; or by one for a network, which is found when it is needed."""
    network = network_of(text)
    if network is None:
        return by_schedule(load(_file(text)), workers, axis_name, spec=text)
    _check_servers(network, workers)

    @functools.cache
    def found() -> Aggregation:
        return by_schedule(solve(network).schedule, workers, axis_name)

    return Aggregation(text, workers, True, lambda optimizer: found()(optimizer))


def _check_servers(network: Topology, workers: int) -> None:
    found = network.num_servers
    if found != workers:
        raise ScheduleError(
            f"scheduled: {network.name} has {found} servers, but there are {workers} "
            f"workers; take {found} workers or another network"
        )


def _gossip(name: str, text: str, workers: int, axis_name: AxisName, same_data: bool) -> Wrap:
    """A method that mixes parameters."""
    from gradweave.aggregate import gossip
    from gradweave.aggregate.rules import CONSENSUS

    head, given, network = text.partition(_NETWORK)
    options = _Options(name, parse_spec(head.rstrip().rstrip(",:"))[1])
    mixing = _mixing(options.take("mixing", str, "weights"), network if given else None, workers)
    more: dict[str, Any] = {"local_steps": options.take("local_steps", int, 1)}
    if name != "naive_psgd":
        more |= {"strictness": options.take("strictness", str, "warn"), "same_data": same_data}
    if name == "choco_sgd":
        more["consensus"] = options.take("consensus", float, CONSENSUS)
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


def _compressor(options: "_Options") -> "Compressor":
    """The compressor that options describe."""
    from gradweave.aggregate.compressors import COMPRESSORS

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
            hint = did_you_mean(key, self._known)
            raise SpecError(f"{self._name}: {shown} is no option of it; {hint}{known}")
