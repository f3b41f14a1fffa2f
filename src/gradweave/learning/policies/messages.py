"""The policies' message passing in compiled loops, over sparse lists and bitsets: for decoding."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.features import Round
from gradweave.learning.policies.messages_kernel import (
    Neighbours,
    hop_weights,
    mean_of_neighbours,
    means_of_parts,
    rectified_sums,
    times,
)
from gradweave.schedulers.kernels.bitset import pack

Numbers = NDArray[np.float32]
Pair = Callable[[Numbers], tuple[Numbers, Numbers]]
"""Maps [., D] to two means [A, D]."""


class StageEdges:
    """Who hears whom in a round; the part that depends on a stage's hops is computed per stage.

    One implementation of `policy.Edges`, whose fields document the messages.
    """

    xp = np

    def __init__(
        self, problem: CompiledInstance, there: NDArray[np.bool_], trees: NDArray[np.bool_]
    ) -> None:
        """Prepares a stage, before its first round.

        Args:
            problem: the problem.
            there: [H] which hops belong to the stage.
            trees: [Q] which trees belong to it.
        """
        hops, servers, links = problem.hops, len(problem.waiting), len(problem.workloads.capacity)
        sender, receiver = hops.source[there], hops.target[there]
        entry = there[problem.hop_of_link]
        hop, link = problem.hop_of_link[entry], hops.links[entry]
        by_sender, by_receiver = hops.source[hop], hops.target[hop]
        self._problem = problem
        used = np.zeros(links, bool)
        used[link] = True
        self.masks = np.greater(problem.workloads.intake, 0), used, trees
        self.servers_to_servers = _pair((receiver, sender), (sender, receiver), servers)
        self.links_to_servers = _pair((by_receiver, link), (by_sender, link), servers)
        self.servers_to_links = _pair((link, by_sender), (link, by_receiver), links)
        self._trees = pack(trees.reshape(1, -1))[0]
        self._servers = pack(np.ones((1, servers), bool))[0]

    def begin_round(self, features: Round) -> "StageEdges":
        """Records which server holds which tree, and so from whom each hears."""
        is_server, _, is_tree = self.masks
        holds, held = pack(features.holds), pack(np.ascontiguousarray(features.holds.T))
        self.trees_to_servers = partial(means_of_parts, holds, self._trees, is_server)
        self.servers_to_trees = partial(means_of_parts, held, self._servers, is_tree)
        return self

    @staticmethod
    def relu(x: Numbers) -> Numbers:
        """The positive part."""
        return np.maximum(x, 0.0)

    @staticmethod
    def times(x: Numbers, y: Numbers) -> Numbers:
        """The product of two matrices."""
        return times(x, np.ascontiguousarray(y))

    def change(
        self,
        own: Numbers,
        heard: Sequence[tuple[Pair, Numbers]],
        weights: Numbers,
        bias: Numbers,
        mask: NDArray[np.bool_],
    ) -> Numbers:
        """The change of embeddings by a layer: see `policy.Edges`."""
        messages = np.empty((len(weights), *own.shape), np.float32)
        messages[0] = own
        for place, (means, x) in enumerate(heard):
            messages[1 + 2 * place], messages[2 + 2 * place] = means(x)
        messages[-1] = own[mask].sum(0) / max(int(mask.sum()), 1)
        return rectified_sums(messages, weights, bias, mask)

    def on_hops(
        self, own: Numbers, of_sender: Numbers, of_receiver: Numbers, of_links: Any
    ) -> Numbers:
        """[H, 12] see `policy.workload_scores`."""
        return hop_weights(self._problem.hops, own, of_sender, of_receiver, times(*of_links))


def _pair(
    one: tuple[NDArray, NDArray], other: tuple[NDArray, NDArray], rows: int
) -> Callable[[Numbers], tuple[Numbers, Numbers]]:
    """Two means over pairs of a target and a source."""
    first, second = (_neighbours(target, source, rows) for target, source in (one, other))
    return lambda x: (mean_of_neighbours(x, first), mean_of_neighbours(x, second))


def _neighbours(target: NDArray[np.int64], source: NDArray[np.int64], rows: int) -> Neighbours:
    """The mean over pairs of a target and a source, by target."""
    width = int(source.max(initial=0)) + 1
    pairs, number = np.unique(target * width + source, return_counts=True)
    row = pairs // width
    share = number / np.maximum(np.bincount(row, number, minlength=rows), 1)[row]
    first = np.searchsorted(row, np.arange(rows + 1))
    return Neighbours(first, pairs % width, share.astype(np.float32))
