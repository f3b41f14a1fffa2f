"""The learned policies on any network: an episode, round by round, without JAX.

The numbers are those of `learning.features` and `learning.networks`, which say what each means.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.instance import NEVER, Instance
from gradweave.schedulers.learned.feature_table import HIGHEST, HIGHEST_LOAD, LAYERS, LOWEST, UNIT
from gradweave.schedulers.learned.repair import RoundRepair, can_repair, lanes_of
from gradweave.schedulers.problem import HopTable, hop_table, hops_over, integers
from gradweave.stop import UNLIMITED, Stop

if TYPE_CHECKING:
    from gradweave.schedulers.kernels.bitset import Bitset
    from gradweave.schedulers.learned.messages_kernel import Neighbours
    from gradweave.schedulers.learned.repair_kernel import Lanes
    from gradweave.schedulers.learned.state_kernel import WorkloadTable

Numbers = NDArray[np.float32]


class EncoderWeights(NamedTuple):
    """One agent's message passing; D is `WIDTH`."""

    server: Numbers
    """[6, D]"""
    link: Numbers
    """[3, D]"""
    tree: Numbers
    """[5, D]"""
    whole: Numbers
    """[5, 3, D]"""
    server_layers: Numbers
    """[layers, 8, D, D]"""
    link_layers: Numbers
    """[layers, 4, D, D]"""
    tree_layers: Numbers
    """[layers, 4, D, D]"""
    bias_layers: Numbers
    """[layers, 3, D]"""


class PolicyWeights(NamedTuple):
    """Both agents."""

    of_trees: EncoderWeights
    tree_score: Numbers
    """[D]"""
    tree_bias: float
    of_workloads: EncoderWeights
    hop: Numbers
    """[12]"""
    hop_of_sender: Numbers
    """[D, 12]"""
    hop_of_receiver: Numbers
    hop_of_links: Numbers
    piece: Numbers
    """[7]"""
    piece_of_receiver: Numbers
    """[D, 7]"""
    match: Numbers
    """[D, D]"""


class Episode(NamedTuple):
    """What an episode came to."""

    rounds: int
    """−1 where it was given up."""
    sent_round: NDArray[np.int64]
    """[N, Q] round of each transfer."""
    sent_hop: NDArray[np.int64]
    """[N, Q] its hop."""


class Features(NamedTuple):
    """A round's start; see `learning.features.Round`."""

    server: Numbers
    link: Numbers
    tree: Numbers
    whole: Numbers
    holds: NDArray[np.bool_]
    lacks: NDArray[np.bool_]
    candidates: NDArray[np.bool_]
    rounds_left: float
    link_slack: Numbers
    chain: NDArray[np.int64]
    to_come: NDArray[np.float64]


class Views(NamedTuple):
    """What the message passing says about each part of a network."""

    server: Numbers
    link: Numbers
    tree: Numbers


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledInstance:
    """A scheduling problem as the compiled round takes it."""

    instance: Instance
    hops: HopTable
    workloads: "WorkloadTable"
    waiting: NDArray[np.int64]
    pending: NDArray[np.bool_]
    root: NDArray[np.int64]
    stage: NDArray[np.int64]
    then: NDArray[np.int64]
    bound: NDArray[np.int64]
    hop_of_link: NDArray[np.int64]
    """Hop of each entry of `HopTable.links`."""
    carries: NDArray[np.bool_]
    """[H, stages] whether a hop carries a tree of a stage."""
    total: NDArray[np.int64]
    """[Q] transfers of each tree."""
    barrier: bool

    @staticmethod
    def of(instance: Instance) -> "CompiledInstance":
        """Lays an instance out."""
        from gradweave.schedulers.kernels.bitset import pack
        from gradweave.schedulers.learned.state_kernel import WorkloadTable

        arrays, routes = instance.arrays, instance.hops
        links, first_link = routes.links, routes.first_link
        lengths = np.diff(first_link)
        allowed, allowed_row = arrays["allowed"], np.arange(len(lengths))
        if arrays["grown"]:  # every hop of a stage carries all of its trees
            allowed, allowed_row = _distinct_rows(allowed)
        servers = len(arrays["intake"])
        hops = hop_table(arrays["sender"], arrays["receiver"], links, first_link, servers)
        workloads = WorkloadTable(
            sender_link=integers(arrays["sender_link"]),
            receiver_link=integers(arrays["receiver_link"]),
            over=hops_over(links, first_link, len(arrays["capacity"])),
            capacity=integers(arrays["capacity"]),
            intake=integers(arrays["intake"]),
            allowed=pack(np.ascontiguousarray(allowed)),
            allowed_row=integers(allowed_row),
            by_sender=arrays["by_sender"],
            height=integers(arrays["height"]),
            grown=bool(arrays["grown"]),
        )
        return CompiledInstance(
            instance,
            hops,
            workloads,
            pending=np.ascontiguousarray(arrays["pending"]),
            hop_of_link=np.repeat(np.arange(len(lengths)), lengths),
            carries=_carries(arrays["allowed"], arrays["stage"]),
            total=arrays["pending"].sum(0),
            barrier=bool(arrays["barrier"]),
            **{
                name: integers(arrays[name])
                for name in ("waiting", "root", "stage", "then", "bound")
            },
        )

    @functools.cached_property
    def lanes(self) -> "Lanes":
        """The problem as a repair takes it."""
        return lanes_of(self.instance, self.workloads.intake)


def _distinct_rows(table: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The distinct ones of rows that are alike or have nothing in common, and which each row is."""
    _, first, which = np.unique(table.argmax(1), return_index=True, return_inverse=True)
    return table[first], which


def _carries(allowed: NDArray[np.bool_], stage: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[H, stages]."""
    return np.stack([allowed[:, stage == one].any(1) for one in range(stage.max() + 1)], 1)


class _Listening(NamedTuple):
    """Who hears whom in the message passing of a stage."""

    to_receiver: "Neighbours"
    """Servers that hear those that can send to them."""
    to_sender: "Neighbours"
    """Servers that hear those that they can send to."""
    links_to_receiver: "Neighbours"
    """Servers that hear the links of hops into them."""
    links_to_sender: "Neighbours"
    sender_to_links: "Neighbours"
    """Links that hear the senders of hops over them."""
    receiver_to_links: "Neighbours"
    trees: "Bitset"
    """[W] trees that servers hear, as bits."""
    servers: "Bitset"
    """[W] servers that trees hear: all."""

    @staticmethod
    def of(
        problem: CompiledInstance, there: NDArray[np.bool_], trees: NDArray[np.bool_]
    ) -> "_Listening":
        """Of the hops of a stage.

        Args:
            problem: the problem.
            there: [H] which they are.
            trees: [Q] of the stage.
        """
        from gradweave.schedulers.kernels.bitset import pack

        hops, servers, links = problem.hops, len(problem.waiting), len(problem.workloads.capacity)
        sender, receiver = hops.source[there], hops.target[there]
        entry = there[problem.hop_of_link]
        hop, link = problem.hop_of_link[entry], hops.links[entry]
        by_sender, by_receiver = hops.source[hop], hops.target[hop]
        return _Listening(
            _neighbours(receiver, sender, servers),
            _neighbours(sender, receiver, servers),
            _neighbours(by_receiver, link, servers),
            _neighbours(by_sender, link, servers),
            _neighbours(link, by_sender, links),
            _neighbours(link, by_receiver, links),
            pack(trees.reshape(1, -1))[0],
            pack(np.ones((1, servers), bool))[0],
        )


def _neighbours(target: NDArray[np.int64], source: NDArray[np.int64], rows: int) -> "Neighbours":
    """The mean over pairs of a target and a source, by target."""
    from gradweave.schedulers.learned.messages_kernel import Neighbours

    width = int(source.max(initial=0)) + 1
    pairs, number = np.unique(target * width + source, return_counts=True)
    row = pairs // width
    share = number / np.maximum(np.bincount(row, number, minlength=rows), 1)[row]
    first = np.searchsorted(row, np.arange(rows + 1))
    return Neighbours(first, pairs % width, share.astype(np.float32))


class OngoingEpisode:
    """An episode in the middle."""

    def __init__(self, problem: CompiledInstance, *, repair: bool = False) -> None:
        """Begins an episode.

        Args:
            problem: what to schedule.
            repair: whether rounds are repaired, where there are swaps for it.
        """
        self.problem = problem
        can = repair and can_repair(problem.instance)
        self.repair = RoundRepair(problem.lanes, problem.hops) if can else None
        shape = problem.waiting.shape
        self.round, self.stage_start = 0, 0
        self.waiting, self.pending = problem.waiting.copy(), problem.pending.copy()
        self.sent_round, self.sent_hop = np.full(shape, NEVER), np.full(shape, NEVER)
        self.near, self.lack = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.held = np.zeros(shape[1], np.int64)
        self.selected_before = np.zeros(shape[1], bool)
        self.left = int(problem.pending.sum())
        self._enter(0)

    def _enter(self, stage: int) -> None:
        from gradweave.schedulers.learned.state_kernel import enter_stage

        problem = self.problem
        self.stage, self.stage_start = stage, self.round
        self.under_way = (problem.stage == stage) | (not problem.barrier)
        carries = problem.carries
        own = carries[:, stage] if problem.barrier else np.logical_or.reduce(carries, axis=1)
        self.there = np.ascontiguousarray(own)
        self.listening = _Listening.of(problem, self.there, self.under_way)
        enter_stage(
            *(problem.hops, self.there, self.under_way, self.pending),
            *(self.near, self.lack, self.held),
        )

    @property
    def bound(self) -> int:
        """Lower bound on the stage's rounds, or on all with overlap."""
        bound = self.problem.bound
        return int(bound[self.stage] if self.problem.barrier else bound.sum())

    def features(self) -> Features:
        """The features of the round that begins."""
        from gradweave.schedulers.learned.state_kernel import hop_counts, link_features

        problem, there = self.problem, self.there
        hops, workloads = problem.hops, problem.workloads
        spent = self.round - (self.stage_start if problem.barrier else 0)
        rounds_left = float(max(self.bound - spent, 1))
        left, ready, chain, cells, candidates = hop_counts(
            hops, workloads, there, self.under_way, self.waiting, self.pending
        )
        wait = np.where(self.under_way, self.waiting, 0)
        to_send = np.where(self.under_way, self.pending, False)
        holds, lacks = self.under_way & (wait == 0), self.under_way & (wait > 0)
        to_come = wait.sum(1).astype(np.float64)
        into = np.bincount(hops.target[there], minlength=len(to_come))
        share = to_come / np.maximum(into, 1)
        wanted = share[hops.target] * there if workloads.grown else left.astype(np.float64)
        link, link_slack = link_features(
            hops, workloads.capacity, there, wanted, ready, rounds_left
        )
        return Features(
            self._of_servers(holds, lacks, to_come, rounds_left),
            link,
            self._of_trees(cells, to_send, rounds_left),
            self._of_whole(to_send, rounds_left),
            holds,
            lacks,
            candidates,
            rounds_left,
            link_slack,
            chain,
            to_come,
        )

    def _of_servers(
        self,
        holds: NDArray[np.bool_],
        lacks: NDArray[np.bool_],
        to_come: NDArray[np.float64],
        rounds_left: float,
    ) -> Numbers:
        """[N, 6]."""
        from gradweave.schedulers.learned.state_kernel import wanted_beside

        has, lack, wanted = wanted_beside(self.problem.hops, self.there, holds, lacks)
        trees = max(int(self.under_way.sum()), 1)
        intake = self.problem.workloads.intake
        features = [
            np.minimum(to_come / (rounds_left * np.maximum(intake, 1)), HIGHEST_LOAD),
            np.clip(rounds_left * intake - to_come, LOWEST, HIGHEST) / UNIT,
            has / trees,
            lack / trees,
            np.log1p(intake) / 2.0,
            wanted / np.maximum(has, 1),
        ]
        return np.stack(features, 1).astype(np.float32)

    def _of_trees(
        self, cells: NDArray[np.bool_], to_send: NDArray[np.bool_], rounds_left: float
    ) -> Numbers:
        """[Q, 5]; 0 for trees of another stage."""
        total, workloads = self.problem.total, self.problem.workloads
        remaining = to_send.sum(0) / np.maximum(total, 1)
        tallest = np.zeros(len(total), np.int64)
        if not workloads.grown:  # no chains
            tallest = np.where(to_send, workloads.height, 0).max(0)
        features = [
            1.0 - remaining,
            cells.sum(0) / np.maximum(total, 1),
            remaining,
            self.selected_before,
            np.minimum(tallest / rounds_left, HIGHEST_LOAD),
        ]
        return np.where(self.under_way[:, None], np.stack(features, 1), 0.0).astype(np.float32)

    def _of_whole(self, to_send: NDArray[np.bool_], rounds_left: float) -> Numbers:
        """[5]."""
        workloads, total = self.problem.workloads, self.problem.total
        features = [
            workloads.grown,
            min(rounds_left / max(self.bound, 1), 1.0),
            to_send.sum() / max(np.where(self.under_way, total, 0).sum(), 1),
            (workloads.by_sender & self.under_way).any(),
            np.log(len(workloads.intake)) / 4.0,
        ]
        return np.array(features, np.float32)

    def encode(self, weights: EncoderWeights, features: Features) -> Views:
        """Message passing over servers, links and trees."""
        from gradweave.schedulers.kernels.bitset import pack
        from gradweave.schedulers.learned.messages_kernel import add_messages, times

        held = pack(features.holds), pack(np.ascontiguousarray(features.holds.T))
        is_server: NDArray[np.bool_] = np.greater(self.problem.workloads.intake, 0)
        is_link: NDArray[np.bool_] = np.greater(features.link[:, 2], 0)
        is_tree = self.under_way
        whole = np.einsum("w,wkd->kd", features.whole, weights.whole)
        server = _begin(times(features.server, weights.server) + whole[0], is_server)
        link = _begin(times(features.link, weights.link) + whole[1], is_link)
        tree = _begin(times(features.tree, weights.tree) + whole[2], is_tree)
        for layer in range(LAYERS):
            views = Views(server, link, tree)
            to_servers = self._messages_to_servers(views, held[0], is_server)
            to_links = self._messages_to_links(views, is_link)
            to_trees = _messages_to_trees(views, held[1], self.listening.servers, is_tree)
            bias = weights.bias_layers[layer]
            add_messages(server, to_servers, weights.server_layers[layer], bias[0], is_server)
            add_messages(link, to_links, weights.link_layers[layer], bias[1], is_link)
            add_messages(tree, to_trees, weights.tree_layers[layer], bias[2], is_tree)
        return Views(server, link, tree)

    def _messages_to_servers(
        self, views: Views, holds: "Bitset", is_server: NDArray[np.bool_]
    ) -> Numbers:
        """[8, N, D]."""
        from gradweave.schedulers.learned.messages_kernel import mean_of_neighbours, means_of_parts

        server, listening = views.server, self.listening
        messages = [
            server,
            mean_of_neighbours(server, listening.to_receiver),
            mean_of_neighbours(server, listening.to_sender),
            mean_of_neighbours(views.link, listening.links_to_receiver),
            mean_of_neighbours(views.link, listening.links_to_sender),
            *means_of_parts(holds, listening.trees, is_server, views.tree),
            _mean_of_all(server, is_server),
        ]
        return _stacked(messages)

    def _messages_to_links(self, views: Views, is_link: NDArray[np.bool_]) -> Numbers:
        """[4, L, D]."""
        from gradweave.schedulers.learned.messages_kernel import mean_of_neighbours

        messages = [
            views.link,
            mean_of_neighbours(views.server, self.listening.sender_to_links),
            mean_of_neighbours(views.server, self.listening.receiver_to_links),
            _mean_of_all(views.link, is_link),
        ]
        return _stacked(messages)

    def select(
        self,
        weights: PolicyWeights,
        features: Features,
        rng: np.random.Generator,
        temperature: float,
    ) -> NDArray[np.bool_]:
        """Flow-tree selection: the round's trees."""
        views = self.encode(weights.of_trees, features)
        scores = views.tree @ weights.tree_score + weights.tree_bias
        noise = rng.logistic(size=len(scores)) * temperature
        selected = features.candidates & (scores + noise > 0)
        if not selected.any():  # a round without a transfer helps nobody
            selected[np.where(features.candidates, scores, -np.inf).argmax()] = True
        return selected

    def scores(
        self, weights: PolicyWeights, features: Features
    ) -> tuple[Numbers, Numbers, Numbers]:
        """What the features of the round's workloads count for: by hop, by receiver; the match."""
        from gradweave.schedulers.learned.messages_kernel import hop_weights, times

        views = self.encode(weights.of_workloads, features)
        hop = hop_weights(
            *(self.problem.hops, weights.hop),
            times(views.server, weights.hop_of_sender),
            times(views.server, weights.hop_of_receiver),
            times(views.link, weights.hop_of_links),
        )
        piece = weights.piece + times(views.server, weights.piece_of_receiver)
        match = times(times(views.server, weights.match), np.ascontiguousarray(views.tree.T))
        return hop, piece, match

    def play_round(
        self,
        weights: PolicyWeights,
        rng: np.random.Generator,
        temperature: float,
        select: bool,
    ) -> int:
        """One round; how many transfers it has."""
        from gradweave.schedulers.learned.round_kernel import draw_round
        from gradweave.schedulers.learned.state_kernel import EpisodeArrays, Scores

        features = self.features()
        selected = features.candidates
        if select:
            selected = self.select(weights, features, rng, temperature)
        scores = Scores(*self.scores(weights, features), features.link_slack, features.chain)
        arriving = np.zeros_like(self.waiting)
        progress = EpisodeArrays(
            *(self.waiting, self.pending, arriving, features.to_come),
            *(self.near, self.lack, self.held, self.sent_round, self.sent_hop),
        )
        at, rounds_left = self.round, features.rounds_left

        def draw(heat: float, seed: int) -> int:
            return draw_round(
                *(self.problem.hops, self.problem.workloads, progress, scores),
                *(self.there, selected & self.under_way, rounds_left, heat, seed, at),
            )

        if self.repair is None:
            sent = draw(float(temperature), int(rng.integers(2**32)))
        else:
            until = self.bound - at
            sent = self.repair.fill(progress, draw, at, until, float(temperature), rng)
        self._arrive(arriving, selected)
        self.left -= sent
        return sent

    def _arrive(self, arriving: NDArray[np.int64], selected: NDArray[np.bool_]) -> None:
        """The round's end: what was on the way has arrived."""
        problem = self.problem
        columns = np.flatnonzero(problem.then >= 0)
        roots = problem.root[columns]
        self.waiting[roots, problem.then[columns]] -= arriving[roots, columns]
        self.waiting -= arriving
        self.selected_before = selected
        self.round += 1
        if problem.barrier and problem.carries.shape[1] > 1:
            left = self.pending.any(0)
            if left.any() and problem.stage[left].min() > self.stage:
                self._enter(int(problem.stage[left].min()))

    def go_back(self, rounds: int) -> None:
        """Takes the last rounds back, of an episode that is repaired.

        Args:
            rounds: how many; all where there are fewer.
        """
        from gradweave.schedulers.learned.state_kernel import enter_stage

        problem, repair = self.problem, self.repair
        assert repair is not None
        self.round = max(self.round - rounds, 0)
        gone = self.sent_round >= self.round
        self.sent_round[gone], self.sent_hop[gone] = NEVER, NEVER
        self.pending = problem.pending & (self.sent_round == NEVER)
        self.waiting = self.pending.astype(np.int64)
        self.left = int(self.pending.sum())
        enter_stage(
            *(problem.hops, self.there, self.under_way, self.pending),
            *(self.near, self.lack, self.held),
        )
        repair.returns += 1
        repair.begin_after(self.sent_hop)


def _messages_to_trees(
    views: Views, held_by: "Bitset", servers: "Bitset", is_tree: NDArray[np.bool_]
) -> Numbers:
    """[4, Q, D]."""
    from gradweave.schedulers.learned.messages_kernel import means_of_parts

    messages = [
        views.tree,
        *means_of_parts(held_by, servers, is_tree, views.server),
        _mean_of_all(views.tree, is_tree),
    ]
    return _stacked(messages)


def _begin(view: NDArray, mask: NDArray[np.bool_]) -> Numbers:
    return np.where(mask[:, None], np.maximum(view, 0.0), 0.0).astype(np.float32)


def _mean_of_all(view: Numbers, mask: NDArray[np.bool_]) -> Numbers:
    """[D]."""
    return (view[mask].sum(0) / max(int(mask.sum()), 1)).astype(np.float32)


def _stacked(messages: list[Numbers]) -> Numbers:
    """[M, A, D] messages, the last of which is [D], the same to all."""
    stacked = np.empty((len(messages), *messages[0].shape), np.float32)
    for kind, message in enumerate(messages):
        stacked[kind] = message
    return stacked


def play(
    problem: CompiledInstance,
    weights: PolicyWeights,
    *,
    seed: int | tuple[int, ...],
    temperature: float = 1.0,
    select: bool = True,
    repair: bool = False,
    returns: bool = True,
    max_rounds: int | None = None,
    stop: Stop = UNLIMITED,
    finish: bool = False,
) -> Episode:
    """One episode of the policies.

    Args:
        problem: what to schedule.
        weights: both agents.
        seed: of every random choice.
        temperature: of the draws; 0 takes the best actions, ties broken at random.
        select: whether flow-tree selection acts; if not, every tree is selected.
        repair: whether rounds are improved by swaps and, where they come short, made again; see
            `repair`. Only where there are swaps for it.
        returns: whether a repaired episode goes back where a round comes short.
        max_rounds: after which to give up; eight times the bound if not given.
        stop: when to give up.
        finish: whether the episode is finished then, without taking a round back.
    """
    episode, rng = OngoingEpisode(problem, repair=repair), np.random.default_rng(seed)
    if max_rounds is None:
        max_rounds = 8 * problem.instance.bound + 8
    while episode.left:
        late = bool(stop.reached())
        if episode.round >= max_rounds or (late and not finish):
            return Episode(-1, episode.sent_round, episode.sent_hop)
        back = 0 if episode.repair is None else episode.repair.way_back
        if back and returns and not late:
            episode.go_back(back)
        elif not episode.play_round(weights, rng, temperature, select):
            return Episode(-1, episode.sent_round, episode.sent_hop)
    return Episode(episode.round, episode.sent_round, episode.sent_hop)
