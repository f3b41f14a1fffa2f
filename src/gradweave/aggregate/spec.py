"""Aggregations as text, parsed: ``dcd_psgd:bits=4,network=torus:2x4``.

`parse` returns a description, checked as far as possible without JAX and without finding a
schedule. `gradweave.aggregate.resolve` makes it ready for use.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gradweave.aggregate.compressors import COMPRESSORS, Compressor
from gradweave.aggregate.local.methods import LOCAL, LocalMethod
from gradweave.aggregate.mixing import MIXINGS, MixingMatrix, ring_graph
from gradweave.aggregate.rules import RULES, GossipRule, Strictness, check_gossip_options
from gradweave.aggregate.sequences import SEQUENCES, Drawn
from gradweave.common.checks import (
    check_above_zero,
    check_at_least_one,
    check_not_below_zero,
    did_you_mean,
)
from gradweave.common.specification import UNNAMED, field_kinds, parse_spec, read_options
from gradweave.common.wording import counted
from gradweave.errors import OptionError, ScheduleError, SpecError
from gradweave.schedules.file import load
from gradweave.topology.spec import from_spec as network_from_spec
from gradweave.topology.topology import Topology

if TYPE_CHECKING:  # these import JAX
    from gradweave.aggregate.asynchronous.consistency import Consistency
    from gradweave.aggregate.asynchronous.stragglers import Stragglers

EXACT = ("mean", "ring", "parameter_server", "scheduled")
"""Aggregations of gradients, under which all workers keep equal parameters."""
ASYNCHRONOUS = "asynchronous"
"""The parameter server, whose workers are separate processes."""
METHODS = (*EXACT, *RULES, *LOCAL, ASYNCHRONOUS)
_NETWORK = "network="
_FACTOR = 5.0
"""Default factor by which the steps of a slow worker take longer."""
_ASYNCHRONOUS_KINDS = {
    **{"consistency": str, "bound": int, "catch_up": bool, "servers": int, "correction": bool},
    **{"rate": float, "scale_by_staleness": bool, "step_s": float, "slow": int, "factor": float},
    **{"worker_cpus": float, "min_workers": int},
}
"""The options of ``asynchronous``, and their types."""


@dataclasses.dataclass(frozen=True)
class AveragingSpec:
    """``mean``, ``ring`` or ``parameter_server``."""

    text: str
    """The text as given."""
    method: str
    server: int = 0
    """Rank of the parameter server."""
    exact: ClassVar[bool] = True

    def check_workers(self, workers: int) -> None:
        """Refuses a number of workers that does not fit the server."""
        if not 0 <= self.server < workers:
            raise OptionError(
                f"parameter_server: server: expected 0 to {workers - 1}, got {self.server}"
            )


@dataclasses.dataclass(frozen=True)
class ScheduledSpec:
    """``scheduled:`` and the file of a schedule, or a network to find one for."""

    text: str
    file: Path | None
    network: Topology | None
    exact: ClassVar[bool] = True

    def check_workers(self, workers: int) -> None:
        """Refuses a number of workers other than the servers of the network or schedule."""
        network = self.network
        if network is None:
            assert self.file is not None
            network = load(self.file).topology
        check_servers(network, workers)


@dataclasses.dataclass(frozen=True)
class GossipSpec:
    """A rule with which workers mix their parameters with those of neighbours."""

    text: str
    rule: GossipRule
    compressor: Compressor | None
    mixing: str | Drawn
    """One of `MIXINGS`, or a random or recorded sequence."""
    network: Topology | None
    """Network of the workers; by default a ring."""
    local_steps: int = 1
    seed: int = 0
    """Seed of the compressor and of the sequence."""
    strictness: Strictness = "warn"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_gossip_options(self.local_steps, self.strictness)
        _check_mixing(self.mixing)

    def check_workers(self, workers: int) -> None:
        """Refuses a number of workers that differs from the network's servers."""
        _check_network(self.network, workers)

    def mixing_matrix(self, workers: int) -> MixingMatrix:
        """The mixing matrix, or the sequence of them, of the network or the default ring.

        Raises:
            OptionError: the rule needs a matrix that is constant in time.
            TopologyError: the network does not support this kind.
            FileError: a trace cannot be read.
        """
        matrix = _mixing_matrix(self.mixing, self.network, workers, self.seed)
        self.rule.check_mixing(matrix)
        return matrix


@dataclasses.dataclass(frozen=True)
class LocalSpec:
    """A method of local updates."""

    text: str
    method: LocalMethod
    compressor: Compressor
    seed: int = 0
    mixing: str | Drawn | None = None
    """As in `GossipSpec`, of a method that mixes; None without a network: the method's default."""
    network: Topology | None = None
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.mixing is not None:
            _check_mixing(self.mixing)

    def check_workers(self, workers: int) -> None:
        """Refuses a quorum larger than the number of workers, and a network of other size."""
        self.method.check_workers(workers)
        _check_network(self.network, workers)

    def mixing_matrix(self, workers: int) -> MixingMatrix:
        """The mixing matrix of the averages; see `GossipSpec.mixing_matrix`."""
        if self.mixing is None and self.network is None:
            return self.method.default_mixing(workers, self.seed)
        return _mixing_matrix(self.mixing or "weights", self.network, workers, self.seed)


@dataclasses.dataclass(frozen=True)
class AsynchronousSpec:
    """``asynchronous``: workers that push their updates to servers, and pull the result."""

    text: str
    consistency: "Consistency"
    stragglers: "Stragglers"
    """Planned durations of steps."""
    servers: int = 1
    correction: bool = True
    """Whether workers pull again between playing and learning; they then treat their steps as stale
    experience for the new parameters."""
    rate: float | None = None
    """Factor that servers apply to updates. By default it is 1 for a mean over all workers, and one
    over their number for the update of a single worker."""
    scale_by_staleness: bool = False
    """See `asynchronous.Task`."""
    worker_cpus: float = 0.0
    """See `asynchronous.train_on_ray`."""
    min_workers: int | None = None
    """See `asynchronous.train_on_ray`."""
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_at_least_one(self, "servers")
        check_not_below_zero(self, "worker_cpus")
        if self.rate is not None:
            check_above_zero(self, "rate")

    def check_workers(self, workers: int) -> None:
        """Refuses slow workers that do not exist, and a minimum above the number of workers."""
        if self.min_workers is not None and not 1 <= self.min_workers <= workers:
            raise OptionError(f"min_workers: expected 1 to {workers}, got {self.min_workers}")
        for worker, _ in self.stragglers.slow:
            if not 0 <= worker < workers:
                raise OptionError(f"slow: expected workers 0 to {workers - 1}, got {worker}")

    def rate_for(self, workers: int) -> float:
        """The factor that servers apply to updates."""
        if self.rate is not None:
            return self.rate
        return 1.0 if self.consistency.together else 1.0 / workers


AggregationSpec = AveragingSpec | ScheduledSpec | GossipSpec | LocalSpec | AsynchronousSpec


def parse(text: str) -> AggregationSpec:
    """Parses the specification of an aggregation.

    Args:
        text: see `gradweave.aggregate.aggregator`.

    Raises:
        SpecError: the text cannot be parsed.
        OptionError: a value is out of its range.

    >>> parse("parameter-server:server=2")
    AveragingSpec(text='parameter-server:server=2', method='parameter_server', server=2)
    """
    method = method_of(text)
    if method == "scheduled":
        return _parse_scheduled(text)
    if method in EXACT:
        kinds = {"server": int} if method == "parameter_server" else {}
        return AveragingSpec(text, method, **read_options(method, parse_spec(text)[1], kinds))
    if method in RULES:
        return _parse_gossip(method, text)
    if method in LOCAL:
        return _parse_local(method, text)
    if method == ASYNCHRONOUS:
        return _parse_asynchronous(text)
    hint = did_you_mean(method, METHODS)
    raise SpecError(f"no aggregation {method!r:.60}; {hint}there are {', '.join(METHODS)}")


def method_of(text: str) -> str:
    """The name with which a specification begins."""
    return text.partition(":")[0].strip().lower().replace("-", "_")


def check_servers(network: Topology, workers: int) -> None:
    """Refuses a schedule's network with another number of servers.

    Raises:
        ScheduleError: the message has both numbers.
    """
    servers = network.num_servers
    if servers != workers:
        raise ScheduleError(
            f"scheduled: {network.name} has {servers} servers, but there "
            f"{_are(workers)}; use {servers} workers or another network"
        )


def _are(workers: int) -> str:
    return f"{'is' if workers == 1 else 'are'} {counted(workers, 'worker')}"


def _check_network(network: Topology | None, workers: int) -> None:
    if network is not None and network.num_servers != workers:
        raise OptionError(
            f"network: {network.name} has {network.num_servers} servers, but there {_are(workers)}"
        )


def _check_mixing(mixing: str | Drawn) -> None:
    if isinstance(mixing, str) and mixing not in MIXINGS:
        known = ", ".join((*MIXINGS, *SEQUENCES))
        raise OptionError(f"mixing: expected {known}, got {mixing!r:.60}")


def _mixing_matrix(
    mixing: str | Drawn, network: Topology | None, workers: int, seed: int
) -> MixingMatrix:
    """The mixing matrix of a network, by default a ring."""
    if not isinstance(mixing, str):
        return mixing.make(network or ring_graph(workers), seed)
    if network is None and (mixing == "weights" or workers < 3):
        return MixingMatrix.ring(workers)
    return MIXINGS[mixing](network or network_from_spec(f"ring:{workers}"))


def _parse_scheduled(text: str) -> ScheduledSpec:
    source = text.partition(":")[2].strip()
    if not source:
        raise SpecError(
            "scheduled: expected a schedule's file or a network, as in scheduled:bcube4.json or "
            "scheduled:bcube:n=4,k=1"
        )
    if Path(source).is_file():
        return ScheduledSpec(text, Path(source), None)
    return ScheduledSpec(text, None, network_from_spec(source))


def _parse_gossip(method: str, text: str) -> GossipSpec:
    rule = RULES[method]
    head, given, network = text.partition(_NETWORK)
    values = parse_spec(head.rstrip().rstrip(",:"))[1]
    compressor = _compressor_class(values) if rule.compresses else None
    sequence = SEQUENCES.get(values.get("mixing", ""))
    parts = [field_kinds(part) if part else {} for part in (rule, compressor, sequence)]
    options = read_options(method, values, _gossip_kinds(method, *parts))

    own, of_messages, of_steps = (_made(part, options) for part in (rule, compressor, sequence))
    options.pop("compressor", None)
    mixing = options.pop("mixing", "weights")
    if method == "naive_psgd":
        options["strictness"] = "ignore"
    of_network = network_from_spec(network) if given else None
    return GossipSpec(text, own, of_messages, of_steps or mixing, of_network, **options)


def _gossip_kinds(
    method: str, rule: dict[str, Any], compressor: dict[str, Any], sequence: dict[str, Any]
) -> dict[str, Any]:
    """The options of a rule with its compressor and sequence, and their types."""
    kinds: dict[str, Any] = {"mixing": str, "local_steps": int}
    if method != "naive_psgd":
        kinds["strictness"] = str
    if RULES[method].compresses:
        kinds["compressor"] = str
    if "compressor" in kinds or sequence:
        kinds["seed"] = int
    return kinds | rule | compressor | sequence


def _parse_local(name: str, text: str) -> LocalSpec:
    method = LOCAL[name]
    head, given, network = text.partition(_NETWORK) if method.mixes else (text, "", "")
    values = parse_spec(head.rstrip().rstrip(",:"))[1]
    kinds, parts = {"seed": int}, (method, SEQUENCES.get(values.get("mixing", "")))
    if method.mixes:
        kinds |= {"mixing": str}
    else:  # without a compressor, the method's; `bits` selects max_norm
        named = "compressor" in values or "bits" in values
        kinds |= {"compressor": str}
        default = type(method().default_compressor)
        parts = method, _compressor_class(values) if named else default
    kinds |= {key: kind for part in parts if part for key, kind in field_kinds(part).items()}
    options = read_options(name, values, kinds)
    own, other = (_made(part, options) for part in parts)
    mixing, seed = options.get("mixing"), options.get("seed", 0)
    if not method.mixes:
        return LocalSpec(text, own, other, seed)
    of_network = network_from_spec(network) if given else None
    return LocalSpec(text, own, own.default_compressor, seed, other or mixing, of_network)


def _made(part: type | None, options: dict[str, Any]) -> Any:
    """An object of its options, which are taken out, or None."""
    if part is None:
        return None
    return part(**{name: options.pop(name) for name in field_kinds(part) if name in options})


def _parse_asynchronous(text: str) -> AsynchronousSpec:
    # Imported here, because the package imports JAX.
    from gradweave.aggregate.asynchronous.consistency import SSP, from_spec
    from gradweave.aggregate.asynchronous.stragglers import Stragglers

    values = parse_spec(text)[1]
    if UNNAMED in values:
        values = {"consistency": values[UNNAMED]} | {k: v for k, v in values.items() if k}
    options = read_options(ASYNCHRONOUS, values, _ASYNCHRONOUS_KINDS)
    rule = [
        f"{name}={values[name]}" for name in field_kinds(SSP) if options.pop(name, None) is not None
    ]
    name = options.pop("consistency", "ssp" if rule else "async")
    consistency = from_spec(f"{name}:{','.join(rule)}" if rule else name)
    step_s, slow = options.pop("step_s", 0.0), options.pop("slow", None)
    factor = options.pop("factor", _FACTOR)
    stragglers = Stragglers(step_s, () if slow is None else ((slow, factor),))
    return AsynchronousSpec(text, consistency, stragglers=stragglers, **options)


def _compressor_class(values: Mapping[str, str]) -> type[Compressor]:
    name = values.get("compressor", "max_norm")
    kind = COMPRESSORS.get("uncompressed" if name == "exact" else name)  # an earlier name
    if kind is None:
        raise OptionError(f"compressor: expected {', '.join(COMPRESSORS)}, got {name!r:.60}")
    return kind
