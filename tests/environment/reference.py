"""The environment once more, on `simulator.rounds`: what each step must allow, do and reward.

Nothing here is taken from the environment but the numbers that it gives to hops.
"""

import numpy as np

from gradweave.environment import Rewards
from gradweave.environment.problem import Instance
from gradweave.environment.state import FLOW_TREE_SELECTION
from gradweave.schedulers.hops import Hops
from gradweave.schedules import FlowTrees, Workloads
from gradweave.schedules.schedule import REDUCE
from gradweave.simulator import GrownState, RoundState
from tests.environment.episodes import Episodes, length


class FixedReference:
    """`RoundState`, its workloads told by the environment's hops and trees."""

    def __init__(self, instance: Instance) -> None:
        trees = FlowTrees.shortest_path(instance.topology)
        self.workloads = Workloads.of(trees, instance.collective)
        self.state = RoundState(self.workloads, barrier=not instance.overlap)
        hops = instance.hops
        hop_of = {
            tuple(route.tolist()): hop
            for hop, route in enumerate(np.split(hops.route_nodes, hops.route_offsets[1:-1]))
        }
        routes = np.split(self.workloads.route_nodes, self.workloads.route_offsets[1:-1])
        hop = np.array([hop_of[tuple(route.tolist())] for route in routes])
        two_stages = instance.collective == "all_reduce"
        copies = (self.workloads.op != REDUCE) & two_stages
        tree = self.workloads.piece + instance.topology.num_servers * copies
        self.hop, self.tree = hop, tree
        self.number = {
            place: workload
            for workload, place in enumerate(zip(hop.tolist(), tree.tolist(), strict=True))
        }
        self.barrier = two_stages and not instance.overlap
        self.pieces = instance.topology.num_servers
        self._known: set[tuple[int, int]] | None = None

    @property
    def round(self) -> int:
        return self.state.round

    @property
    def done(self) -> bool:
        return self.state.done

    def open_trees(self) -> set[int]:
        """Trees with transfers left which no barrier holds back."""
        left = set(self.tree[self.state.sent_in < 0].tolist())
        first = {tree for tree in left if tree < self.pieces}
        return first if self.barrier and first else left

    def ready(self) -> set[tuple[int, int]]:
        return self._places(np.flatnonzero(self.state.ready()))

    def available(self) -> set[tuple[int, int]]:
        if self._known is None:
            self._known = self._places(self.state.available())
        return self._known

    def send(self, place: tuple[int, int]) -> None:
        self._known = None
        self.state.send(self.number[place])

    def end_round(self) -> None:
        self._known = None
        self.state.end_round()

    def _places(self, workloads: np.ndarray) -> set[tuple[int, int]]:
        return set(zip(self.hop[workloads].tolist(), self.tree[workloads].tolist(), strict=True))


class GrownReference:
    """`GrownState`, one stage after the other."""

    def __init__(self, instance: Instance) -> None:
        topology = instance.topology
        self.hops = Hops.of(topology, variants=instance.routes)
        self.pieces = topology.num_servers
        backward = {"reduce_scatter": [True], "all_gather": [False], "all_reduce": [True, False]}
        self.states = [
            GrownState(topology, self.hops.route_nodes, self.hops.route_offsets, way)
            for way in backward[instance.collective]
        ]
        self.stage = 0
        self._known: set[tuple[int, int]] | None = None

    @property
    def round(self) -> int:
        return sum(state.round for state in self.states)

    @property
    def done(self) -> bool:
        return all(state.done for state in self.states)

    def open_trees(self) -> set[int]:
        state = self.states[self.stage]
        left = np.flatnonzero(~(state.holds | state.promised).all(axis=0))
        return set((left + self.stage * self.pieces).tolist())

    def ready(self) -> set[tuple[int, int]]:
        return self._places(np.flatnonzero(self.states[self.stage].ready()))

    def available(self) -> set[tuple[int, int]]:
        if self._known is None:
            self._known = self._places(self.states[self.stage].available())
        return self._known

    def send(self, place: tuple[int, int]) -> None:
        self._known = None
        hop, tree = place
        hop -= self.stage * len(self.hops.source)
        tree -= self.stage * self.pieces
        self.states[self.stage].send(hop * self.pieces + tree)

    def end_round(self) -> None:
        self._known = None
        state = self.states[self.stage]
        state.end_round()
        if state.done and self.stage + 1 < len(self.states):
            self.stage += 1

    def _places(self, workloads: np.ndarray) -> set[tuple[int, int]]:
        hop, piece = np.divmod(workloads, self.pieces)
        hop = hop + self.stage * len(self.hops.source)
        tree = piece + self.stage * self.pieces
        return set(zip(hop.tolist(), tree.tolist(), strict=True))


def reference_of(instance: Instance) -> FixedReference | GrownReference:
    return (FixedReference if instance.trees == "fixed" else GrownReference)(instance)


class Replay:
    """One episode on the reference, step by step; whatever differs from what was played fails."""

    def __init__(self, instance: Instance, rewards: Rewards) -> None:
        self.reference = reference_of(instance)
        self.rewards = rewards
        self.bound = sum(instance.bounds)
        stages, servers = len(instance.stages), instance.topology.num_servers
        self.flows, self.trees = stages * servers * (servers - 1), stages * servers
        self.selecting = True
        self.selected: set[int] = set()
        self.sent = 0
        self.first_round: int | None = None
        """The first round in which anything was sent."""

    def allowed(self, width: int) -> tuple[list[int], list[int]]:
        """Trees that may be selected, and numbers of workloads that may be sent."""
        if self.selecting:
            return sorted({tree for _, tree in self.reference.ready()}), []
        return [], sorted(hop * width + tree for hop, tree in self._available())

    def step(self, trees: np.ndarray, workload: int) -> tuple[float, float]:
        """Takes an action: both rewards."""
        got = 0
        if self.selecting:
            self.selected = self.reference.open_trees() & set(np.flatnonzero(trees).tolist())
        else:
            place = divmod(workload, len(trees))
            if place in self._available():
                self.reference.send(place)
                got = 1
                if self.first_round is None:
                    self.first_round = self.reference.round
        self.sent += got
        self.selecting = not self._available()
        weights, share = self.rewards, self.trees / self.flows
        tree_reward, workload_reward = 0.0, weights.workload * got / self.flows
        if self.selecting:
            self.reference.end_round()
            tree_reward += weights.sent * self.sent / self.flows
            tree_reward += weights.selected * len(self.selected) / self.trees
            tree_reward += weights.done if self.reference.done else -weights.unfinished * share
            tree_reward -= weights.rounds / self.bound
            workload_reward -= weights.rounds / self.bound
            self.sent = 0
        return tree_reward, workload_reward

    @property
    def done(self) -> bool:
        return self.selecting and self.reference.done

    def _available(self) -> set[tuple[int, int]]:
        return {place for place in self.reference.available() if place[1] in self.selected}


def close(got: float, expected: float) -> bool:
    """To the rounding of float32; without NumPy, which takes longer for one number."""
    return abs(got - expected) <= 1e-5 * (1.0 + abs(expected))


def replay(
    instance: Instance, played: Episodes, episode: int, rewards: Rewards | None = None
) -> Replay:
    """Plays an episode again on the reference, and compares every step.

    Args:
        instance: what was played.
        played: the episodes.
        episode: which one.
        rewards: the weights that it was played with.

    Returns:
        The reference as it stands at the end.
    """
    again = Replay(instance, rewards or Rewards())
    width = played.trees.shape[-1]
    for step in range(length(played, episode)):
        at = step, episode
        where = f"{instance}, episode {episode}, step {step}"
        assert (played.turn[at] == FLOW_TREE_SELECTION) == again.selecting, where
        assert played.round[at] == again.reference.round, where
        trees, workloads = again.allowed(width)
        assert np.flatnonzero(played.tree_mask[at]).tolist() == trees, where
        assert np.flatnonzero(played.workload_mask[at]).tolist() == workloads, where
        tree_reward, workload_reward = again.step(played.trees[at], int(played.workload[at]))
        assert close(played.tree_reward[at], tree_reward), where
        assert close(played.workload_reward[at], workload_reward), where
        assert played.ended[at] == (again.done or played.truncated[at]), where
        assert not (again.done and played.truncated[at]), where
    return again
