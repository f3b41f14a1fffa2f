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
        if isinstance(self.mixing, str) and self.mixing not in MIXINGS:
            known = ", ".join((*MIXINGS, *SEQUENCES))
            raise OptionError(f"mixing: expected {known}, got {self.mixing!r:.60}")

    def check_workers(self, workers: int) -> None:
        """Refuses a number of workers that differs from the network's servers."""
        if self.network is not None and self.network.num_servers != workers:
            raise OptionError(
                f"network: {self.network.name} has {self.network.num_servers} servers, but "
                f"there {_are(workers)}"
            )

    def mixing_matrix(self, workers: int) -> MixingMatrix:
        """The mixing matrix, or the sequence of them, of the network or the default ring.

        Raises:
            OptionError: the rule needs a matrix that is constant in time.
            TopologyError: the network does not support this kind.
            FileError: a trace cannot be read.
        """
        if not isinstance(self.mixing, str):
            network = self.network or ring_graph(workers)
            matrix = self.mixing.make(network, self.seed)
        elif self.network is None and (self.mixing == "weights" or workers < 3):
            matrix = MixingMatrix.ring(workers)
        else:
            network = self.network or network_from_spec(f"ring:{workers}")
            matrix = MIXINGS[self.mixing](network)
        self.rule.check_mixing(matrix)
        return matrix


@dataclasses.dataclass(frozen=True)
class LocalSpec:
    """A method of local updates."""

    text: str
    method: LocalMethod
    compressor: Compressor
    seed: int = 0
    exact: ClassVar[bool] = False

    def check_workers(self, workers: int) -> None:
        """Refuses a quorum larger than the number of workers."""
        self.method.check_workers(workers)


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

    def made(part: type | None, names: Mapping[str, Any]) -> Any:
        taken = {name: options.pop(name) for name in names if name in options}
        return part(**taken) if part else None

    own, of_messages, of_steps = map(made, (rule, compressor, sequence), parts)
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
    values = parse_spec(text)[1]
    method = LOCAL[name]
    # By default nothing is compressed; `bits` selects max_norm.
    compressor = _compressor_class(values, "max_norm" if "bits" in values else "uncompressed")
    kinds, compressor_kinds = field_kinds(method), field_kinds(compressor)
    options = read_options(
        name, values, kinds | compressor_kinds | {"seed": int, "compressor": str}
    )
    options.pop("compressor", None)
    chosen = {key: options.pop(key) for key in compressor_kinds if key in options}
    seed = options.pop("seed", 0)
    return LocalSpec(text, method(**options), compressor(**chosen), seed)


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


def _compressor_class(values: Mapping[str, str], default: str = "max_norm") -> type[Compressor]:
    name = values.get("compressor", default)
    kind = COMPRESSORS.get("uncompressed" if name == "exact" else name)  # an earlier name
    if kind is None:
        raise OptionError(f"compressor: expected {', '.join(COMPRESSORS)}, got {name!r:.60}")
    return kind
