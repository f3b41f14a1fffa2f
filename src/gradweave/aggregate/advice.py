"""Which aggregation suits a network: seconds and bytes of a step, predicted before training.

Three figures are compared. Seconds and bytes per step are what an aggregation costs. The third is
what they buy: the number of steps until a worker's update has reached all others. An exact mean
takes one; gossip and local updates take more steps, each of which costs less.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradweave.aggregate.aggregation import find_schedule
from gradweave.aggregate.chosen_matchings import messages_of, messages_seconds
from gradweave.aggregate.compressors import Compressor, Uncompressed
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.rules import ChocoSGD
from gradweave.aggregate.spec import (
    AggregationSpec,
    AsynchronousSpec,
    AveragingSpec,
    GossipSpec,
    LocalSpec,
    ScheduledSpec,
    parse,
)
from gradweave.aggregate.validity import advised_consensus, check_validity
from gradweave.common import lazy
from gradweave.errors import OptionError
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solving.own import own_schedule
from gradweave.schedulers.solving.solve import solve
from gradweave.schedulers.textbook.parameter_server import CentralParameterServer
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import Runtime, runtime_of
from gradweave.simulator.traffic import traffic
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.topology.units import as_size

CANDIDATES = (
    "mean",
    "parameter_server",
    "scheduled",
    "d_psgd",
    "d_psgd:mixing=fast_matchings",
    "choco_sgd:bits=4",
    "diloco:local_steps=50",
    "diloco:local_steps=50,bits=4",
    "streaming_diloco:local_steps=50",
    "noloco:local_steps=50",
    "gasloc:local_steps=50",
    "sparseloco:local_steps=50",
    "asynchronous",
)
"""Aggregations that are compared by default; ``scheduled`` is a schedule found for the network."""
ELEMENT_BYTES = 4
"""Bytes of a parameter in a message: float32."""
PACKED_S, UNPACKED_S = 55e-9, 10e-9
"""Seconds of a core to compress a parameter and to decompress it: `MaxNorm` of 4 bits on a million
parameters, PyTorch 2.13 on one core of an AMD EPYC, 2026-11-30. `TopK` took half as long, `RandomK`
six times; a GPU takes far less."""
REACHED = 0.1
"""An update has reached all workers when their disagreement has fallen to this share."""
Ranks = NDArray[np.int64]
SLOWER = 1.25
"""The advised step takes at most this many times as long as the quickest one. A wider choice costs
seconds in every step; a narrower one advises gossip where an exact mean costs little more."""


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What one aggregation is predicted to cost."""

    aggregation: str
    """Its specification."""
    step_s: float
    """Mean seconds of a step, with what the worker computes."""
    exchange_s: float
    """Seconds of one exchange."""
    every: int
    """Steps from one exchange to the next."""
    step_bytes: float
    """Mean bytes that the busiest worker sends per step."""
    reached_after: float
    """Mean steps until an update has reached all workers: 1 for an exact mean."""
    doubts: tuple[str, ...] = ()
    """Reasons for which it may not converge; see `check_validity`."""
    on_front: bool = False
    """Whether no other is at least as good in all three figures and better in one."""
    schedule: Schedule | None = dataclasses.field(default=None, repr=False, compare=False)
    """The schedule of ``scheduled``."""

    @property
    def figures(self) -> tuple[float, float, float]:
        """Seconds and bytes per step, and the steps until an update has reached all."""
        return self.step_s, self.step_bytes, self.reached_after


@dataclasses.dataclass(frozen=True)
class Advice:
    """Forecasts of several aggregations on a network."""

    topology: Topology
    gradient_bytes: int
    compute_s: float
    runtime: str
    forecasts: tuple[Forecast, ...]
    """Quickest step first."""

    @property
    def advised(self) -> Forecast:
        """The aggregation whose updates reach all workers soonest, among those with quick steps.

        A step is quick if it takes at most `SLOWER` times as long as the quickest one. Aggregations
        in doubt are advised only if all are.
        """
        sound = [one for one in self.forecasts if not one.doubts] or list(self.forecasts)
        limit = SLOWER * min(one.step_s for one in sound)
        near = [one for one in sound if one.step_s <= limit]
        return min(near, key=lambda one: (one.reached_after, one.step_s))

    @property
    def conditions(self) -> str:
        """What the predictions assume, as the end of a sentence."""
        return (
            f"if every worker computes for the same time, links carry nothing else, messages cost "
            f"what the profile {self.runtime} says, compressing a parameter takes a core "
            f"{PACKED_S * 1e9:g} ns, and an exchange begins when a step has ended"
        )


def advise(
    topology: TopologyLike,
    gradient_bytes: float | str,
    compute_s: float,
    *,
    runtime: Runtime | str | Path = "gloo",
    candidates: Sequence[str] = CANDIDATES,
    seed: int = 0,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Predicts a training step with each aggregation, and says which one suits the network.

    A step is the worker's computation and then the exchange: computation and messages do not
    overlap, except in ``streaming_diloco`` with its delay and in ``asynchronous``. Messages between
    workers take shortest routes.

    Args:
        topology: the network, whose servers are the workers.
        gradient_bytes: size of all gradients, which are float32, such as ``"100MB"``.
        compute_s: seconds that a worker computes in each step.
        runtime: what sends the messages: a profile, its name or file.
        candidates: aggregations as for `aggregator`; networks of gossip may be left out, and
            ``scheduled`` alone is a schedule found for this network.
        seed: of the search for a schedule, and of random pairs.
        time_limit: seconds for the search for a schedule.
        progress: called with a line about each candidate.

    Raises:
        SpecError: a candidate cannot be parsed.
        OptionError: a value is out of its range, or a candidate is for another number of workers.

    >>> advice = advise("ring:8", "4MB", 0.1, candidates=["mean", "d_psgd", "parameter_server"])
    >>> [one.aggregation for one in advice.forecasts]
    ['d_psgd', 'mean', 'parameter_server']
    """
    network = as_topology(topology)
    size = int(as_size(gradient_bytes))
    if size < ELEMENT_BYTES:
        raise OptionError(f"gradient_bytes: expected at least {ELEMENT_BYTES}, got {size}")
    if not 0 <= compute_s < math.inf:
        raise OptionError(f"compute_s: expected a finite time of at least 0, got {compute_s}")
    if not candidates:
        raise OptionError("candidates: expected at least one, got none")
    model = _Model(network, size // ELEMENT_BYTES, compute_s, runtime_of(runtime), seed, time_limit)
    found = []
    for candidate in candidates:
        progress(candidate)
        found.append(model.forecast(candidate))
    found.sort(key=lambda one: one.figures)
    marked = tuple(
        dataclasses.replace(one, on_front=not any(_better(other, one) for other in found))
        for one in found
    )
    return Advice(network, size, compute_s, model.runtime.name, marked)


def _better(one: Forecast, other: Forecast) -> bool:
    """Whether `one` is at least as good in all three figures, and better in one."""
    pairs = list(zip(one.figures, other.figures, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@dataclasses.dataclass(frozen=True)
class _Model:
    """The network and the training that all forecasts share."""

    network: Topology
    parameters: int
    compute_s: float
    runtime: Runtime
    seed: int
    time_limit: float | None

    @property
    def workers(self) -> int:
        return self.network.num_servers

    @property
    def model_bytes(self) -> int:
        return self.parameters * ELEMENT_BYTES

    def forecast(self, text: str) -> Forecast:
        """The forecast of one aggregation."""
        if text.strip() == "scheduled":
            return self._scheduled(text, None)
        spec = parse(text)
        spec.check_workers(self.workers)
        return self._of(spec)

    def _of(self, spec: AggregationSpec) -> Forecast:
        if isinstance(spec, ScheduledSpec):
            return self._scheduled(spec.text, spec)
        if isinstance(spec, AveragingSpec):
            return self._averaging(spec)
        if isinstance(spec, GossipSpec):
            return self._gossip(spec)
        if isinstance(spec, LocalSpec):
            return self._local(spec)
        return self._asynchronous(spec)

    def _scheduled(self, text: str, spec: ScheduledSpec | None) -> Forecast:
        if spec is not None:
            schedule = find_schedule(spec, self.workers, self.seed)
        else:
            schedule = solve(
                self.network,
                objective="seconds",
                gradient_bytes=self.model_bytes,
                runtime=self.runtime,
                seed=self.seed,
                time_limit=self.time_limit,
            ).schedule
        return dataclasses.replace(self._exact(text, schedule), schedule=schedule)

    def _averaging(self, spec: AveragingSpec) -> Forecast:
        if spec.method == "mean":
            return self._forecast(spec.text, *self._all_reduce(self.model_bytes))
        scheduler: Scheduler = Ring()
        if spec.method == "parameter_server":
            scheduler = CentralParameterServer(int(self.network.servers[spec.server]))
        return self._exact(spec.text, scheduler.schedule(self.network))

    def _exact(self, text: str, schedule: Schedule) -> Forecast:
        seconds = self.runtime.seconds(schedule, self.model_bytes)
        return self._forecast(text, seconds, _most_bytes(schedule, self.model_bytes))

    def _all_reduce(self, size: int) -> tuple[float, float]:
        """Seconds of the runtime's all-reduce, and the bytes that the busiest worker sends.

        If that is not known, Gradweave's ring takes its place.
        """
        if (own := own_schedule(self.network, self.runtime, size)) is not None:
            return self.runtime.own_seconds(own, size), _most_bytes(own, size)
        ring = Ring().schedule(self.network)
        return self.runtime.seconds(ring, size), _most_bytes(ring, size)

    def _gossip(self, spec: GossipSpec) -> Forecast:
        if spec.network is None:
            spec = dataclasses.replace(spec, network=self.network)
        mixing, every = spec.mixing_matrix(self.workers), spec.local_steps
        message = self._payload_bytes(spec.compressor, self.parameters)
        gamma = None
        if isinstance(spec.rule, ChocoSGD):
            alpha = spec.compressor.relative_error(self.parameters) if spec.compressor else 0.0
            gamma = spec.rule.consensus or advised_consensus(mixing.mu, alpha)
        validity = check_validity(
            spec.rule.name, mixing, spec.compressor, self.parameters, consensus=gamma
        )
        exchange_s = self._messages_s(mixing, message)
        if spec.compressor is not None:  # one message, and the neighbours' and its own to read
            exchange_s += self._packing_s(self.parameters, _most_sent(mixing) + 1)
        return self._forecast(
            spec.text,
            exchange_s,
            _most_sent(mixing) * message,
            every,
            every * reached_after(_slowed(mixing, gamma or 1.0)),
            (*validity.impossible, *validity.doubts),
        )

    def _local(self, spec: LocalSpec) -> Forecast:
        method, compressor, workers = spec.method, spec.compressor, self.workers
        size = -(-self.parameters // method.fragments)
        reached: float = method.local_steps
        if method.mixes:
            mixing = spec.mixing_matrix(workers)
            seconds = self._messages_s(mixing, size * ELEMENT_BYTES)
            sent = _most_sent(mixing) * size * ELEMENT_BYTES
            reached *= reached_after(mixing)
        elif isinstance(compressor, Uncompressed):
            seconds, sent = self._all_reduce(size * ELEMENT_BYTES)
        else:
            # Whole messages to all others; or compressed parts, which a worker adds up and returns.
            whole = method.feeds_back
            part = self._payload_bytes(compressor, size if whole else -(-size // workers))
            turns = 1 if whole else 2
            seconds = turns * self._messages_s(MixingMatrix.complete(workers), part)
            seconds += self._packing_s(size, workers if whole else 2)
            sent = float(turns * (workers - 1) * part)
        hidden_s = method.delay * self.compute_s
        return self._forecast(spec.text, seconds, sent, method.interval, reached, (), hidden_s)

    def _asynchronous(self, spec: AsynchronousSpec) -> Forecast:
        """Each worker pushes its update and pulls parameters; nobody waits for other workers.

        Parameters are spread evenly over the servers; a single one is next to the worker where it
        is quickest. A step takes as long as a worker alone needs, or as the messages of all workers
        keep the busiest link, whichever is longer.
        """
        ranks = np.arange(self.workers)
        places = (
            [ranks[:: -(-self.workers // spec.servers)]] if spec.servers > 1 else ranks[:, None]
        )
        place = min(places, key=lambda servers: self._served_s(ranks, servers))
        together_s = self._served_s(ranks, place)
        alone_s = max(self._served_s(ranks[[worker]], place) for worker in ranks)
        step_s = max(self.compute_s + alone_s, together_s)
        # The worker next to a server sends its part to all others, and its update to other servers.
        part = self.model_bytes / len(place)
        sent = (self.workers - 1 + len(place) - 1) * part
        # Others end the step that they have begun with the parameters from before the update.
        return Forecast(spec.text, step_s, step_s - self.compute_s, 1, sent, 2.0)

    def _served_s(self, workers: Ranks, servers: Ranks) -> float:
        """Seconds of a push and a pull of some workers, which share links and processors."""
        part = self.model_bytes / len(servers)
        source, target = np.repeat(workers, len(servers)), np.tile(servers, len(workers))
        apart = source != target
        source, target = source[apart], target[apart]
        return sum(self._sent_s(*ends, part) for ends in ((source, target), (target, source)))

    def _forecast(
        self,
        text: str,
        exchange_s: float,
        sent: float,
        every: int = 1,
        reached: float = 1.0,
        doubts: tuple[str, ...] = (),
        hidden_s: float = 0.0,
    ) -> Forecast:
        step_s = self.compute_s + max(0.0, exchange_s - hidden_s) / every
        return Forecast(text, step_s, exchange_s, every, sent / every, reached, doubts)

    def _messages_s(self, mixing: MixingMatrix, message: float) -> float:
        """Mean seconds of an exchange, in which workers with a weight send to each other."""
        return float(np.mean([self._sent_s(*ends, message) for ends in messages_of(mixing)]))

    def _sent_s(self, source: Ranks, target: Ranks, message: float) -> float:
        """Seconds of messages from ranks [M] to ranks [M], all begun at once."""
        if not len(source):
            return 0.0
        cost_s = float(self.runtime.executor.of(np.array([message]))[0])
        ends = np.bincount(np.concatenate([source, target]), minlength=self.workers)
        busiest_s = float(ends.max()) / self.runtime.at_once
        if self.runtime.processors is not None:
            busiest_s = max(busiest_s, float(ends.sum()) / self.runtime.processors)
        on_links_s = messages_seconds(self.network, source, target, message)
        return max(on_links_s + self.runtime.executor.message_s, busiest_s * cost_s / 2)

    def _packing_s(self, elements: float, reads: float) -> float:
        """Seconds to compress some elements, and to decompress as many a number of times."""
        seconds = elements * (PACKED_S + reads * UNPACKED_S)
        return self.runtime.time_for_all(self.workers, seconds)

    def _payload_bytes(self, compressor: Compressor | None, elements: int) -> int:
        """Bytes of a vector of float32 in a message."""
        if compressor is None or isinstance(compressor, Uncompressed):
            return elements * ELEMENT_BYTES
        # Imported here, since it imports JAX, which only knows how long the arrays are.
        lazy.require(f"a forecast for messages of {compressor.name}", "jax", extra="train")
        import jax

        from gradweave.aggregate.messages import message_bytes

        return message_bytes(compressor, [jax.ShapeDtypeStruct((elements,), "float32")])


def reached_after(mixing: MixingMatrix, most: int = 100_000) -> float:
    """Steps until the workers' disagreement has fallen to `REACHED` of what it was.

    Disagreement is the root mean square over workers and over random parameters, so its share after
    the product P of t steps is the Frobenius norm of P − 1/N, over that of I − 1/N.

    Returns:
        The number of steps, or infinity if `most` are too few.

    >>> reached_after(MixingMatrix.complete(8)), reached_after(MixingMatrix.ring(8))
    (1.0, 8.0)
    """
    apart = left = np.eye(mixing.workers) - 1 / mixing.workers
    for step in range(1, most + 1):
        left = mixing.weights[(step - 1) % mixing.period] @ left
        if np.linalg.norm(left) <= REACHED * np.linalg.norm(apart):
            return float(step)
    return math.inf


def _slowed(mixing: MixingMatrix, gamma: float) -> MixingMatrix:
    """The matrix of CHOCO's average, of which a worker takes the share γ."""
    return MixingMatrix(mixing.name, (1 - gamma) * np.eye(mixing.workers) + gamma * mixing.weights)


def _most_bytes(schedule: Schedule, size: int) -> float:
    """Bytes that the busiest worker sends in an all-reduce."""
    return float(traffic(schedule, size).sent_bytes.max())


def _most_sent(mixing: MixingMatrix) -> float:
    """Mean messages per exchange of the worker that sends most."""
    sent = [np.bincount(source, minlength=mixing.workers) for source, _ in messages_of(mixing)]
    return float(np.mean(sent, axis=0).max())
