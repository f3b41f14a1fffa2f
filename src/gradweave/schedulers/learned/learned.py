"""The learned scheduler: what two cooperating policies learned, decoded on any network.

The policies were trained with JAX by `gradweave.learning`. To use them takes NumPy and numba alone:
`policy` plays an episode in milliseconds, on networks of any size.
"""

import dataclasses
import functools
import importlib.resources
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import FileError, NoScheduleError, OptionError
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.instance import Instance, Trees
from gradweave.schedulers.learned import feature_table as table
from gradweave.schedulers.learned.policy import (
    CompiledInstance,
    EncoderWeights,
    Episode,
    PolicyWeights,
    play,
)
from gradweave.schedulers.learned.repair import can_repair
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts, from_stage
from gradweave.stop import UNLIMITED, Stop
from gradweave.topology.topology import Topology

FORMAT, VERSION = "gradweave-policy", "1"
"""What a file of weights says it is."""
OLD_NAMES = {
    "hop_of_giver": "hop_of_sender",
    "hop_of_taker": "hop_of_receiver",
    "piece_of_taker": "piece_of_receiver",
}
"""Of parts of arrays' names in files, the shipped one among them."""
ROUTES = 4
"""Shortest routes between two servers that are looked for."""
RECEIVERS = 48
"""Servers, near and far, to which each may send at most: behind large switches the hops that share
a link are the square of the servers."""
A_MOMENT, TEN_SECONDS, A_MINUTE = 0.3, 10.0, 60.0
A_TRANSFER_S, A_HOP_S, A_PIECE_S = 1.1e-5, 1e-6, 1e-8
"""What an episode takes on one core, roughly: for each transfer; for each hop that shares a link
with its hop; and for each piece. Fitted to eleven networks of 54 to 1,024 servers; all were within
30%."""
GOING_BACK = 7
"""Times as long that an episode takes, about, which does not meet the bound and so goes back."""
REPAIRED_TEMPERATURE = 2.0
"""Temperature of drawn episodes that are repaired: docs/concepts/learning.md compares others."""


@dataclasses.dataclass(frozen=True)
class Learned(Scheduler):
    """Flow-tree selection and workload scheduling by trained policies.

    Takes the best action at every step; then, until the bound is met, episodes whose actions are
    drawn by the policies' odds. With grown trees each round is repaired, and draws are hotter, by
    the square roots of the odds. The best of all is kept. The other stage is the reversed one.

    Source: sections 4.2 to 4.4 of the paper; docs/concepts/learning.md for what differs.
    """

    name: ClassVar[str] = "learned"

    samples: int | None = None
    """Episodes drawn at most, after the one that takes the best actions; 0 for that one alone. If
    not given, 16 repaired ones or 64 others, or fewer on networks so large that they would take
    more than about ten seconds on one core, reckoned from the size and not from the clock; none at
    all, and no schedule, where one episode would take more than a minute."""
    greedy: bool = True
    """Whether the episode that takes the best actions is played at all."""
    repair: bool = True
    """With grown trees: whether swaps improve each round that the policies drew, and rounds that
    leave a server more than it can take until the bound are made again, and rounds before them."""
    trees: Trees = "grown"
    """Whether trees grow with the schedule or are the pinned shortest paths, as in the paper."""
    routes: int = ROUTES
    """With grown trees: shortest routes to look for between two servers, one by the pinned rule,
    others at random; on more than 48 servers one of them is kept, at random, from port to port."""
    workers: int = 1
    """Threads that play side by side; the result does not depend on their number."""
    weights: str | None = None
    """File of weights made by `gradweave learn`; the shipped ones if not given."""

    def __post_init__(self) -> None:
        check_counts(self, "samples", least=0)
        check_counts(self, "routes", "workers")
        if self.samples == 0 and not self.greedy:
            raise OptionError(
                "learned: samples=0,greedy=false leaves no episode to play; expected samples of 1 "
                "or more, or greedy=true"
            )
        if self.trees not in ("grown", "fixed"):
            raise OptionError(f"learned: trees: expected grown or fixed, got {self.trees!r}")

    @property
    def traits(self) -> Traits:
        """What it is like, with these options."""
        return Traits(after_proofs=True, one_draw=self.samples == 1 and not self.greedy)

    def _make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        weights = read_weights(self.weights)
        return from_stage(
            self._own_stage,
            lambda network: self._stage(network, weights, seed, stop),
            topology,
            collective,
        )

    @property
    def _own_stage(self) -> Literal["reduce_scatter", "all_gather"]:
        """The stage that is played; the other one is it, reversed."""
        return "all_gather" if self.trees == "grown" else "reduce_scatter"

    def _stage(self, topology: Topology, weights: PolicyWeights, seed: int, stop: Stop) -> Schedule:
        stage = self._own_stage
        instance = Instance(
            topology, stage, self.trees, routes=self.routes, spread=_spread(topology)
        )
        _check_time(instance, stop)
        samples = self.samples
        if samples is None:
            samples = _samples(instance, self.repair)
        best = best_of(
            CompiledInstance.of(instance),
            weights,
            range(0 if self.greedy else 1, samples + 1),
            repair=self.repair,
            seed=seed,
            workers=self.workers,
            stop=stop,
        )
        if best is None:
            raise NoScheduleError(f"learned: no {stage} of {topology.name!r} was completed")
        return instance.schedule(best.sent_round, best.sent_hop)


def _spread(topology: Topology) -> int | None:
    """Servers to keep hops to; all where there are few enough."""
    return None if topology.num_servers <= RECEIVERS else RECEIVERS


def _samples(instance: Instance, repair: bool) -> int:
    """As many samples as take about ten seconds, at most 16 with repair and 64 without.

    Raises:
        NoScheduleError: where one episode alone takes over a minute.
    """
    episode_s = _episode_s(instance)
    if episode_s > A_MINUTE:
        raise NoScheduleError(
            f"learned: one episode on {instance.topology.num_servers} servers takes about "
            f"{episode_s:.0f} s; give samples, such as samples=0, to play it all the same"
        )
    if repair and can_repair(instance):
        return int(min(16, TEN_SECONDS // (GOING_BACK * episode_s)))
    return int(min(64, TEN_SECONDS // episode_s))


def _check_time(instance: Instance, stop: Stop) -> None:
    """Refuses to begin an episode that takes longer than there is time.

    Raises:
        NoScheduleError: saying how long it takes.
    """
    episode_s, left_s = _episode_s(instance), stop.seconds_left
    if episode_s > max(left_s, A_MOMENT):
        raise NoScheduleError(
            f"learned: one episode takes about {episode_s:.1f} s; {left_s:.1f} are left"
        )


def _episode_s(instance: Instance) -> float:
    """Seconds that one episode takes on one core, roughly."""
    hops, servers = instance.hops, instance.topology.num_servers
    on_link = np.bincount(hops.links)
    beside = float(np.square(on_link).sum()) / len(hops.source)  # hops that share a hop's links
    transfer_s = A_TRANSFER_S + beside * A_HOP_S + servers * A_PIECE_S
    return servers * (servers - 1) * transfer_s


def best_of(
    problem: CompiledInstance,
    weights: PolicyWeights,
    numbers: range,
    *,
    repair: bool = True,
    seed: int = 0,
    workers: int = 1,
    stop: Stop = UNLIMITED,
) -> Episode | None:
    """Episodes until one meets the bound; the best of all.

    Args:
        problem: what to schedule.
        weights: the policies.
        numbers: of the episodes; number 0 takes the best actions, all others draw theirs, hotter
            where they are repaired.
        repair: whether they are repaired; see `Learned`.
        seed: of every random choice, together with an episode's number.
        workers: threads that play side by side.
        stop: before the bound is met; one episode is always played.

    Returns:
        The episode; None where none was completed.
    """
    best, stop = None, stop.at(problem.instance.bound)
    temperature = REPAIRED_TEMPERATURE if repair and can_repair(problem.instance) else 1.0

    def episode(number: int) -> Episode:
        return play(
            problem,
            weights,
            seed=(seed, number),
            temperature=temperature if number else 0.0,
            repair=repair,
            stop=stop,
            finish=number == numbers[0],
        )

    with ThreadPoolExecutor(workers) as pool:
        for first in range(0, len(numbers), workers):
            for made in pool.map(episode, numbers[first : first + workers]):
                if made.rounds >= 0 and (best is None or made.rounds < best.rounds):
                    best = made
            if stop.reached(math.inf if best is None else best.rounds):
                break
    return best


def read_weights(path: str | None = None) -> PolicyWeights:
    """Reads weights; the shipped ones if no file is given.

    Raises:
        FileError: where the file does not hold trained policies.
    """
    if path is not None:
        return _read(Path(path).expanduser())
    return _shipped()


@functools.cache
def _shipped() -> PolicyWeights:
    folder = importlib.resources.files("gradweave.schedulers.learned").joinpath("weights")
    with importlib.resources.as_file(folder.joinpath("learned.safetensors")) as path:
        return _read(path)


def _read(path: Path) -> PolicyWeights:
    from gradweave import arrays  # safetensors is imported where weights are read

    about = arrays.metadata(path)
    arrays.check_format(path, about, FORMAT, VERSION)
    held = arrays.renamed(arrays.read(path), OLD_NAMES)
    return weights_of(held, _number(path, about.get("common", "")), path)


def _number(path: Path, text: str) -> float:
    """A number in a file's metadata."""
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise FileError(f"{path}: metadata: common: expected a number, got {text!r:.40}")
    return number


def weights_of(arrays: dict[str, NDArray[Any]], common: float, origin: Path | str) -> PolicyWeights:
    """Weights from the trained policies' arrays.

    Args:
        arrays: by their paths in the policies, such as ``tree.score``.
        common: factor of the scores' weights; `gradweave.learning.networks.COMMON`.
        origin: of the arrays, for messages.

    Raises:
        FileError: where one is missing or of another shape.
    """
    reader, factor = _Reader(origin, arrays), np.float32(common)
    return PolicyWeights(
        of_trees=reader.encoder("tree.encoder"),
        tree_score=reader.take("tree.score", ("D",)),
        tree_bias=reader.take("tree.bias", ()).item(),
        of_workloads=reader.encoder("workload.encoder"),
        hop=factor * reader.take("workload.hop", ("F",)),
        hop_of_sender=reader.take("workload.hop_of_sender", ("D", "F")),
        hop_of_receiver=reader.take("workload.hop_of_receiver", ("D", "F")),
        hop_of_links=reader.take("workload.hop_of_links", ("D", "F")),
        piece=factor * reader.take("workload.piece", ("G",)),
        piece_of_receiver=reader.take("workload.piece_of_receiver", ("D", "G")),
        match=reader.take("workload.match", ("D", "D")),
    )


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Takes arrays by their names and checks them."""

    origin: Path | str
    arrays: dict[str, NDArray[Any]]

    def take(self, name: str, shape: tuple[str, ...]) -> NDArray[np.float32]:
        """An array by its name, of a shape in the letters of `learning.networks`."""
        letters: dict[str, int] = {
            "D": table.WIDTH,
            "F": table.HOP_FEATURES,
            "G": table.PIECE_FEATURES,
            "S": table.SERVER_FEATURES,
            "K": table.LINK_FEATURES,
            "T": table.TREE_FEATURES,
            "W": table.WHOLE_FEATURES,
            **{digit: int(digit) for digit in "348"},
        }
        wanted = tuple(letters[letter] for letter in shape)
        array = self.arrays.get(name)
        got = None if array is None else (array.dtype.name, array.shape)
        if array is None or got != ("float32", wanted) or not np.isfinite(array).all():
            raise FileError(
                f"{self.origin}: array {name!r}: expected finite float32 {wanted}, got {got}"
            )
        return np.ascontiguousarray(array)

    def encoder(self, name: str) -> EncoderWeights:
        """One agent's message passing."""

        def layers(part: str, shape: tuple[str, ...]) -> Any:
            return np.stack(
                [self.take(f"{name}.layers.{layer}.{part}", shape) for layer in range(table.LAYERS)]
            )

        return EncoderWeights(
            server=self.take(f"{name}.server", ("S", "D")),
            link=self.take(f"{name}.link", ("K", "D")),
            tree=self.take(f"{name}.tree", ("T", "D")),
            whole=self.take(f"{name}.whole", ("W", "3", "D")),
            server_layers=layers("server", ("8", "D", "D")),
            link_layers=layers("link", ("4", "D", "D")),
            tree_layers=layers("tree", ("4", "D", "D")),
            bias_layers=layers("bias", ("3", "D")),
        )
