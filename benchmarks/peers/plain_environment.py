"""The scheduling environment in plain Python, with which the JAX environment is compared.

One episode at a time, by the rules of `gradweave.environment`: flow-tree selection once per round,
then workload scheduling, one workload per step, until none fits; both agents' rewards; the mask of
available workloads with each step. Constants are looked up in tables, and the mask is updated
incrementally: a step removes what the sent workload rules out. There are two variants, which
represent the mask differently.
"""

import random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.environment.problem import Instance, Problem


class RecordedStep(NamedTuple):
    """A recorded step."""

    trees: list[bool]
    """Selected in the round."""
    workload: int
    """In `SchedulingEnvironment`'s numbering; −1 for a step of flow-tree selection."""
    tree_reward: float
    workload_reward: float
    available: list[int]
    """Workloads available afterwards, in the same numbering."""


class PlainEnvironment:
    """Sets of workloads, and a bytearray as the mask."""

    def __init__(self, instance: Instance) -> None:
        problem = Problem.of(instance)
        self.pieces = trees = len(problem.root)
        hop, tree = np.nonzero(np.asarray(problem.allowed))
        sender, receiver = np.asarray(problem.sender)[hop], np.asarray(problem.receiver)[hop]
        at = np.where(np.asarray(problem.by_sender)[tree], sender, receiver)
        self.number = hop * trees + tree
        """`SchedulingEnvironment`'s number of each workload; here they are numbered from 0."""
        self.tree: list[int] = tree.tolist()
        self.transfer: list[int] = (at * trees + tree).tolist()
        self.arrives: list[int] = (receiver * trees + tree).tolist()
        self.capacity: list[int] = np.asarray(problem.capacity)[:-1].tolist()
        routes = [
            [link for link in route if link < len(self.capacity)]
            for route in np.asarray(problem.hop_links).tolist()
        ]
        self.links = [routes[h] for h in hop]
        self.on_link: list[list[int]] = [[] for _ in self.capacity]
        self.by_transfer: dict[int, list[int]] = {}
        self.by_sender: dict[int, list[int]] = {}
        for workload, source in enumerate((sender * trees + tree).tolist()):
            for link in self.links[workload]:
                self.on_link[link].append(workload)
            self.by_transfer.setdefault(self.transfer[workload], []).append(workload)
            self.by_sender.setdefault(source, []).append(workload)
        self.stage: list[int] = np.asarray(problem.stage).tolist()
        self.barrier = bool(problem.barrier)
        # A root's copies also wait for the reduces into it.
        self.then = {
            root * trees + q: root * trees + then
            for q, (root, then) in enumerate(
                zip(problem.root.tolist(), problem.then.tolist(), strict=True)
            )
            if then >= 0
        }
        self.waiting_first: list[int] = np.asarray(problem.waiting).ravel().tolist()
        self.pending_first: list[int] = np.flatnonzero(np.asarray(problem.pending)).tolist()
        self.total = len(self.pending_first)
        self.index()
        self.reset()

    def index(self) -> None:
        """Builds the lookup tables that updating the mask needs."""
        self.ruled_out_by_link = [set(workloads) for workloads in self.on_link]
        self.ruled_out_by_transfer = {key: set(w) for key, w in self.by_transfer.items()}

    def reset(self) -> None:
        """Starts an episode."""
        self.round = 0
        self.waiting = self.waiting_first.copy()
        self.pending = set(self.pending_first)
        self.left = [0, 0]
        self.left_in_tree = [0] * self.pieces
        for transfer in self.pending_first:
            self.left[self.stage[transfer % self.pieces]] += 1
            self.left_in_tree[transfer % self.pieces] += 1
        self.open = 0
        self.behind_barrier: list[int] = []
        self.arriving: list[int] = []
        self.ready: set[int] = set()
        for server_and_tree, count in enumerate(self.waiting):
            if count == 0:
                self.can_give(server_and_tree)

    def can_give(self, server_and_tree: int) -> None:
        """A server's workloads in a tree are ready, unless a barrier holds them back."""
        if self.barrier and self.stage[server_and_tree % self.pieces] > self.open:
            self.behind_barrier.append(server_and_tree)
            return
        for workload in self.by_sender.get(server_and_tree, ()):
            if self.transfer[workload] in self.pending:
                self.ready.add(workload)

    def begin_round(self, trees: list[bool]) -> None:
        """Trees that are complete or behind the barrier are never selected."""
        last = self.open if self.barrier else 1
        self.selected = sum(
            selected and self.left_in_tree[tree] > 0 and self.stage[tree] <= last
            for tree, selected in enumerate(trees)
        )
        self.sent = 0
        self.room = self.capacity.copy()

    def select(self, trees: list[bool]) -> tuple[bytearray, float]:
        """Flow-tree selection: the round's trees. If nothing is ready, the round ends.

        Returns:
            The mask of available workloads, and flow-tree selection's reward.
        """
        self.begin_round(trees)
        self.available = {workload for workload in self.ready if trees[self.tree[workload]]}
        self.mask = bytearray(len(self.tree))
        for workload in self.available:
            self.mask[workload] = 1
        return self.mask, 0.0 if self.available else self.end_round()

    def step(self, workload: int) -> tuple[bytearray, float, float, bool]:
        """Workload scheduling: sends an available workload; the last one ends the round.

        Returns:
            The mask, both agents' rewards, workload scheduling's first, and whether the round is
            over.
        """
        excluded = self.ruled_out_by_transfer[self.send(workload)]
        self.ready -= excluded
        self.rule_out(excluded)
        for link in self.links[workload]:
            self.room[link] -= 1
            if self.room[link] == 0:
                self.rule_out(self.ruled_out_by_link[link])
        tree_reward = 0.0 if self.available else self.end_round()
        return self.mask, 1 / self.total, tree_reward, not self.available

    def rule_out(self, workloads: set[int]) -> None:
        """Removes workloads from the mask."""
        mask = self.mask
        for workload in self.available & workloads:
            mask[workload] = 0
        self.available -= workloads

    def send(self, workload: int) -> int:
        """Records a workload's transfer, and returns the transfer."""
        transfer = self.transfer[workload]
        self.pending.discard(transfer)
        self.arriving.append(self.arrives[workload])
        tree = self.tree[workload]
        self.left[self.stage[tree]] -= 1
        self.left_in_tree[tree] -= 1
        self.sent += 1
        return transfer

    def end_round(self) -> float:
        """Completes the round's transfers; returns flow-tree selection's reward."""
        self.round += 1
        waiting, complete = self.waiting, []
        for arrived in self.arriving:
            waiting[arrived] -= 1
            if waiting[arrived] == 0:
                complete.append(arrived)
            then = self.then.get(arrived)
            if then is not None:
                waiting[then] -= 1
                if waiting[then] == 0:
                    complete.append(then)
        self.arriving.clear()
        if self.open == 0 and self.left[0] == 0:
            self.open = 1
            complete += self.behind_barrier
        for server_and_tree in complete:
            self.can_give(server_and_tree)
        dense = self.sent / self.total + 0.1 * self.selected / self.pieces
        return dense + (-self.pieces / self.total if self.pending else 10.0)

    def draw(self, number: float) -> int:
        """The available workload at a position between 0 and 1."""
        available = tuple(self.available)
        return available[int(number * len(available))]

    def random_episode(
        self, rng: random.Random, share: float = 1.0, recorded: list[RecordedStep] | None = None
    ) -> int:
        """Sends random available workloads until all transfers are made; returns the steps.

        Args:
            rng: random numbers.
            share: probability of selecting a tree in a round.
            recorded: receives the steps.
        """
        self.reset()
        steps, number = 0, rng.random
        while self.pending:
            trees = [share == 1.0 or number() < share for _ in range(self.pieces)]
            begin = self.round
            _, reward = self.select(trees)
            if recorded is not None:
                recorded.append(RecordedStep(trees, -1, reward, 0.0, self.numbers()))
            while self.round == begin:
                workload = self.draw(number())
                _, sent, reward, _ = self.step(workload)
                steps += 1
                if recorded is not None:
                    recorded.append(
                        RecordedStep(
                            trees, int(self.number[workload]), reward, sent, self.numbers()
                        )
                    )
        return steps

    def numbers(self) -> list[int]:
        """Available workloads, in `SchedulingEnvironment`'s numbering."""
        return self.number[np.flatnonzero(np.frombuffer(self.mask, np.uint8))].tolist()


class NumpyEnvironment(PlainEnvironment):
    """A NumPy array as the mask, and no sets of available workloads."""

    mask: NDArray[np.bool_]

    def index(self) -> None:
        """Builds the lookup tables that updating the mask needs."""
        self.indices_by_link = [np.array(workloads, np.intp) for workloads in self.on_link]
        self.indices_by_transfer = {
            key: np.array(w, np.intp) for key, w in self.by_transfer.items()
        }
        self.trees = np.array(self.tree)
        self.indices_by_sender = {key: np.array(w, np.intp) for key, w in self.by_sender.items()}
        self.is_pending_first = np.zeros(len(self.waiting_first), bool)
        self.is_pending_first[self.pending_first] = True
        self.transfers = np.array(self.transfer)

    def reset(self) -> None:
        """Starts an episode."""
        self.are_ready = np.zeros(len(self.tree), bool)
        self.is_pending = self.is_pending_first.copy()
        super().reset()

    def can_give(self, server_and_tree: int) -> None:
        """A server's workloads in a tree are ready, unless a barrier holds them back."""
        if self.barrier and self.stage[server_and_tree % self.pieces] > self.open:
            self.behind_barrier.append(server_and_tree)
            return
        workloads = self.indices_by_sender.get(server_and_tree)
        if workloads is not None:
            self.are_ready[workloads] = self.is_pending[self.transfers[workloads]]

    def select(self, trees: list[bool]) -> tuple[NDArray[np.bool_], float]:
        """Flow-tree selection."""
        self.begin_round(trees)
        self.mask = self.are_ready & np.array(trees)[self.trees]
        return self.mask, 0.0 if self.mask.any() else self.end_round()

    def step(self, workload: int) -> tuple[NDArray[np.bool_], float, float, bool]:
        """Workload scheduling."""
        transfer = self.send(workload)
        self.is_pending[transfer] = False
        excluded = self.indices_by_transfer[transfer]
        self.are_ready[excluded] = False
        self.mask[excluded] = False
        for link in self.links[workload]:
            self.room[link] -= 1
            if self.room[link] == 0:
                self.mask[self.indices_by_link[link]] = False
        over = not self.mask.any()
        return self.mask, 1 / self.total, self.end_round() if over else 0.0, over

    def draw(self, number: float) -> int:
        """The available workload at a position between 0 and 1."""
        available = self.mask.nonzero()[0]
        return int(available[int(number * len(available))])
