"""The learned policies on any network: an episode, round by round, without JAX.

The numbers are those of `learning.features` and `learning.networks`, which say what each means.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.instance import NEVER, Instance

WIDTH, LAYERS = 16, 2
"""Numbers that each server, link and tree is described by, and rounds of message passing."""
SERVER_FEATURES, LINK_FEATURES, TREE_FEATURES, WHOLE_FEATURES = 6, 3, 5, 5
HOP_FEATURES, PIECE_FEATURES = 12, 7
SERVER_MESSAGES, LINK_MESSAGES, TREE_MESSAGES = 8, 4, 4
"""Kinds of what each hears: itself, its neighbours by kind, and the network as a whole."""

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
    hop_of_giver: Numbers
    """[D, 12]"""
    hop_of_taker: Numbers
    hop_of_links: Numbers
    piece: Numbers
    """[7]"""
    piece_of_taker: Numbers
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
class Field:
    """A problem, laid out for the compiled round."""

    instance: Instance
    giver: NDArray[np.int64]
    taker: NDArray[np.int64]
    giver_link: NDArray[np.int64]
    taker_link: NDArray[np.int64]
    links: NDArray[np.int64]
    first_link: NDArray[np.int64]
    hops_on: NDArray[np.int64]
    first_on: NDArray[np.int64]
    hops_from: NDArray[np.int64]
    first_from: NDArray[np.int64]
    hops_into: NDArray[np.int64]
    first_into: NDArray[np.int64]
    capacity: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    waiting: NDArray[np.int64]
    pending: NDArray[np.bool_]
    at_giver: NDArray[np.bool_]
    root: NDArray[np.int64]
    stage: NDArray[np.int64]
    then: NDArray[np.int64]
    height: NDArray[np.int64]
    intake: NDArray[np.int64]
    bound: NDArray[np.int64]
    hop_of_link: NDArray[np.int64]
    """Hop of each entry of `links`."""
    grown: bool
    barrier: bool

    @staticmethod
    def of(instance: Instance) -> "Field":
        """Lays an instance out."""
        arrays, hops = instance.arrays, instance.hops
        lengths = np.diff(hops.first_link)
        hop_of_link = np.repeat(np.arange(len(lengths)), lengths)
        on, first_on = _rows(hops.links, len(arrays["capacity"]))
        servers = len(arrays["intake"])
        hops_from, first_from = _rows(arrays["giver"], servers)
        hops_into, first_into = _rows(arrays["taker"], servers)
        integers = {
            name: np.ascontiguousarray(arrays[name], np.int64)
            for name in (
                *("giver", "taker", "giver_link", "taker_link", "capacity", "waiting"),
                *("root", "stage", "then", "height", "intake", "bound"),
            )
        }
        return Field(
            instance,
            **integers,
            links=np.ascontiguousarray(hops.links, np.int64),
            first_link=np.ascontiguousarray(hops.first_link, np.int64),
            hop_of_link=hop_of_link,
            hops_on=np.ascontiguousarray(hop_of_link[on], np.int64),
            first_on=first_on,
            hops_from=hops_from,
            first_from=first_from,
            hops_into=hops_into,
            first_into=first_into,
            allowed=np.ascontiguousarray(arrays["allowed"]),
            pending=np.ascontiguousarray(arrays["pending"]),
            at_giver=arrays["at_giver"],
            grown=bool(arrays["grown"]),
            barrier=bool(arrays["barrier"]),
        )


def _rows(keys: NDArray, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places by key, and where each key's start."""
    order = np.argsort(keys, kind="stable")
    return order, np.searchsorted(keys[order], np.arange(number + 1))


class Play:
    """An episode in the middle."""

    def __init__(self, field: Field) -> None:
        self.field = field
        shape = field.waiting.shape
        self.round, self.stage_start = 0, 0
        self.waiting, self.pending = field.waiting.copy(), field.pending.copy()
        self.sent_round, self.sent_hop = np.full(shape, NEVER), np.full(shape, NEVER)
        self.near, self.lack = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.held = np.zeros(shape[1], np.int64)
        self.selected_before = np.zeros(shape[1], bool)
        self.left = int(field.pending.sum())
        self._enter(0)

    def _enter(self, stage: int) -> None:
        from gradweave.schedulers.learned.policy_kernel import enter_stage

        field = self.field
        self.stage, self.stage_start = stage, self.round
        self.under_way = (field.stage == stage) | (not field.barrier)
        self.there = (field.allowed & self.under_way).any(1)
        enter_stage(
            *(field.giver, field.taker, self.there, self.under_way, self.pending),
            *(self.near, self.lack, self.held),
        )

    @property
    def bound(self) -> int:
        """Lower bound on the stage's rounds, or on all with overlap."""
        return int(self.field.bound[self.stage] if self.field.barrier else self.field.bound.sum())

    def features(self) -> Features:
        """The features of the round that begins."""
        from gradweave.schedulers.learned.policy_kernel import (
            hop_counts,
            link_features,
            neighbours_want,
        )

        field, exists, there = self.field, self.under_way, self.there
        spent = self.round - (self.stage_start if field.barrier else 0)
        rounds_left = float(max(self.bound - spent, 1))
        left, ready, chain, cells, candidates = hop_counts(
            *(field.giver, field.taker, there, field.allowed, field.at_giver, field.height),
            *(exists, self.waiting, self.pending),
        )
        wait = np.where(exists, self.waiting, 0)
        holds, lacks = exists & (wait == 0), exists & (wait > 0)
        to_come = wait.sum(1).astype(np.float64)
        into = np.bincount(field.taker[there], minlength=len(to_come))
        share = to_come / np.maximum(into, 1)
        wanted = share[field.taker] * there if field.grown else left.astype(np.float64)
        link, link_slack = link_features(
            *(field.links, field.first_link, field.capacity, there, wanted, ready, rounds_left)
        )
        want = neighbours_want(field.giver, field.taker, there, lacks)
        number, intake, has = max(int(exists.sum()), 1), field.intake, holds.sum(1)
        can_take = rounds_left * np.maximum(intake, 1)
        server = np.stack(
            [
                np.minimum(to_come / can_take, 2.0),
                np.clip(rounds_left * intake - to_come, -4.0, 8.0) / 4.0,
                has / number,
                lacks.sum(1) / number,
                np.log1p(intake) / 2.0,
                (holds & want).sum(1) / np.maximum(has, 1),
            ],
            1,
        )
        to_send, total = np.where(exists, self.pending, False), field.pending.sum(0)
        remaining = to_send.sum(0) / np.maximum(total, 1)
        tallest = np.where(to_send, field.height, 0).max(0)
        tree = np.stack(
            [
                1.0 - remaining,
                cells.sum(0) / np.maximum(total, 1),
                remaining,
                self.selected_before,
                np.minimum(tallest / rounds_left, 2.0),
            ],
            1,
        )
        whole = [
            field.grown,
            min(rounds_left / max(self.bound, 1), 1.0),
            to_send.sum() / max(np.where(exists, total, 0).sum(), 1),
            (field.at_giver & exists).any(),
            np.log(len(intake)) / 4.0,
        ]
        return Features(
            server.astype(np.float32),
            link,
            np.where(exists[:, None], tree, 0.0).astype(np.float32),
            np.array(whole, np.float32),
            holds,
            lacks,
            candidates,
            rounds_left,
            link_slack,
            chain,
            to_come,
        )

    def encode(self, weights: EncoderWeights, features: Features) -> Views:
        """Message passing over servers, links and trees."""
        from gradweave.schedulers.learned.policy_kernel import (
            add_told,
            mean_over_hops,
            mean_where,
            times,
        )

        field, there = self.field, self.there
        servers = len(features.holds)
        on_hop = there[field.hop_of_link]
        link_giver, link_taker = field.giver[field.hop_of_link], field.taker[field.hop_of_link]
        is_server: NDArray[np.bool_] = np.greater(field.intake, 0)
        is_link: NDArray[np.bool_] = np.greater(features.link[:, 2], 0)
        is_tree = np.logical_or.reduce(features.holds | features.lacks)
        own = np.einsum("w,wkd->kd", features.whole, weights.whole)
        server = _begin(times(features.server, weights.server) + own[0], is_server)
        link = _begin(times(features.link, weights.link) + own[1], is_link)
        tree = _begin(times(features.tree, weights.tree) + own[2], is_tree)
        holds, lacks = features.holds, features.lacks
        held_by, lacked_by = np.ascontiguousarray(holds.T), np.ascontiguousarray(lacks.T)
        for layer in range(LAYERS):
            heard_by_server = np.stack(
                [
                    server,
                    mean_over_hops(server, field.giver, field.taker, there, servers),
                    mean_over_hops(server, field.taker, field.giver, there, servers),
                    mean_over_hops(link, field.links, link_taker, on_hop, servers),
                    mean_over_hops(link, field.links, link_giver, on_hop, servers),
                    mean_where(holds, tree),
                    mean_where(lacks, tree),
                    _mean_of_all(server, is_server),
                ]
            )
            heard_by_link = np.stack(
                [
                    link,
                    mean_over_hops(server, link_giver, field.links, on_hop, len(link)),
                    mean_over_hops(server, link_taker, field.links, on_hop, len(link)),
                    _mean_of_all(link, is_link),
                ]
            )
            heard_by_tree = np.stack(
                [
                    tree,
                    mean_where(held_by, server),
                    mean_where(lacked_by, server),
                    _mean_of_all(tree, is_tree),
                ]
            )
            bias = weights.bias_layers[layer]
            add_told(server, heard_by_server, weights.server_layers[layer], bias[0], is_server)
            add_told(link, heard_by_link, weights.link_layers[layer], bias[1], is_link)
            add_told(tree, heard_by_tree, weights.tree_layers[layer], bias[2], is_tree)
        return Views(server, link, tree)

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
        """What the features of the round's workloads count for: by hop, by taker; the match."""
        from gradweave.schedulers.learned.policy_kernel import times

        field, views = self.field, self.encode(weights.of_workloads, features)
        links = np.add.reduceat(views.link[field.links], field.first_link[:-1])
        links /= np.diff(field.first_link)[:, None]
        hop = weights.hop + times(links, weights.hop_of_links)
        hop += times(views.server, weights.hop_of_giver)[field.giver]
        hop += times(views.server, weights.hop_of_taker)[field.taker]
        piece = weights.piece + times(views.server, weights.piece_of_taker)
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
        from gradweave.schedulers.learned.policy_kernel import draw_round

        field, features = self.field, self.features()
        selected = features.candidates
        if select:
            selected = self.select(weights, features, rng, temperature)
        hop_weights, piece_weights, match = self.scores(weights, features)
        arriving = np.zeros_like(self.waiting)
        made = draw_round(
            *(field.giver, field.taker, field.giver_link, field.taker_link),
            *(field.links, field.first_link, field.hops_on, field.first_on),
            *(field.hops_from, field.first_from, field.hops_into, field.first_into),
            *(field.capacity, field.intake, field.allowed, field.at_giver, field.height),
            *(field.grown, self.there, selected & self.under_way),
            *(self.waiting, self.pending, arriving, features.to_come),
            *(self.near, self.lack, self.held, hop_weights, piece_weights, match),
            *(features.link_slack, features.chain, features.rounds_left),
            *(float(temperature), int(rng.integers(2**32)), self.round),
            *(self.sent_round, self.sent_hop),
        )
        self._arrive(arriving, selected)
        self.left -= made
        return made

    def _arrive(self, arriving: NDArray[np.int64], selected: NDArray[np.bool_]) -> None:
        """The round's end: what was on the way has arrived."""
        field = self.field
        columns = np.flatnonzero(field.then >= 0)
        roots = field.root[columns]
        self.waiting[roots, field.then[columns]] -= arriving[roots, columns]
        self.waiting -= arriving
        self.selected_before = selected
        self.round += 1
        left = self.pending.any(0)
        if field.barrier and left.any() and field.stage[left].min() > self.stage:
            self._enter(int(field.stage[left].min()))


def _begin(view: NDArray, mask: NDArray[np.bool_]) -> Numbers:
    return np.where(mask[:, None], np.maximum(view, 0.0), 0.0).astype(np.float32)


def _mean_of_all(view: Numbers, mask: NDArray[np.bool_]) -> Numbers:
    mean = view[mask].sum(0) / max(int(mask.sum()), 1)
    return np.broadcast_to(mean.astype(np.float32), view.shape)


def play(
    field: Field,
    weights: PolicyWeights,
    *,
    seed: int | tuple[int, ...],
    temperature: float = 1.0,
    select: bool = True,
    most: int | None = None,
) -> Episode:
    """One episode of the policies.

    Args:
        field: the problem.
        weights: both agents.
        seed: of every random choice.
        temperature: of the draws; 0 takes the best actions, ties broken at random.
        select: whether flow-tree selection acts; if not, every tree is selected.
        most: rounds after which to give up; eight times the bound if not given.
    """
    play = Play(field)
    rng = np.random.default_rng(seed)
    most = 8 * field.instance.bound + 8 if most is None else most
    while play.left:
        if play.round >= most or not play.play_round(weights, rng, temperature, select):
            return Episode(-1, play.sent_round, play.sent_hop)
    return Episode(play.round, play.sent_round, play.sent_hop)
