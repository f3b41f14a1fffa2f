"""Means over neighbours and products of small matrices, compiled, for `messages`."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.learning.episodes.state_kernel import Booleans
from gradweave.schedulers.kernels.bitset import WORD, Bitset, count, lowest, without_lowest
from gradweave.schedulers.problem import HopTable, Integers

Numbers = NDArray[np.float32]


class Neighbours(NamedTuple):
    """Who hears whom: a sparse matrix whose rows sum to 1, or are empty."""

    first: Integers
    """[rows+1] index of each row's first entry."""
    source: Integers
    """Source row of each entry."""
    share: Numbers
    """Weight of each entry."""


@kernel(fastmath=True)
def mean_of_neighbours(x: Numbers, neighbours: Neighbours) -> Numbers:
    """[rows, D] the mean of the rows [., D] that each row hears."""
    first, source, share = neighbours.first, neighbours.source, neighbours.share
    width = x.shape[1]
    out = np.zeros((len(first) - 1, width), np.float32)
    for row in range(len(first) - 1):
        for entry in range(first[row], first[row + 1]):
            for j in range(width):
                out[row, j] += share[entry] * x[source[entry], j]
    return out


@kernel(fastmath=True)
def means_of_parts(
    part: Bitset, whole: Bitset, rows: Booleans, x: Numbers
) -> tuple[Numbers, Numbers]:
    """The means over a part of a set, and over the rest of it; 0 if empty.

    The smaller of the two is summed, and the other is the difference from the sum of the whole.

    Args:
        part: [A, W] subsets of the set.
        whole: [W] the set.
        rows: [A] which rows to compute.
        x: [., D] the vectors to average.
    """
    width, number = x.shape[1], 0
    of_part = np.zeros((len(part), width), np.float32)
    of_rest, total = np.zeros_like(of_part), np.zeros(width)
    for place in range(len(whole)):
        word = whole[place]
        number += count(word)
        while word:
            for j in range(width):
                total[j] += x[WORD * place + lowest(word), j]
            word = without_lowest(word)
    for row in range(len(part)):
        if not rows[row]:
            continue
        few = 0
        for place in range(len(whole)):
            few += count(part[row, place] & whole[place])
        rest = 2 * few > number
        small, large = (of_rest, of_part) if rest else (of_part, of_rest)
        few = number - few if rest else few
        for place in range(len(whole)):
            word = (part[row, place] & whole[place]) ^ (whole[place] if rest else np.uint64(0))
            while word:
                other = WORD * place + lowest(word)
                for j in range(width):
                    small[row, j] += x[other, j]
                word = without_lowest(word)
        for j in range(width):
            large[row, j] = (total[j] - small[row, j]) / max(number - few, 1)
            small[row, j] /= max(few, 1)
        if number == few:
            large[row] = 0
    return of_part, of_rest


@kernel(fastmath=True)
def hop_weights(
    hops: HopTable, own: Numbers, of_sender: Numbers, of_receiver: Numbers, of_links: Numbers
) -> Numbers:
    """[H, 12] the weights of the features of each hop.

    Args:
        hops: the network.
        own: [12] base weights, equal on all hops.
        of_sender: [N, 12] additional weights of the sender.
        of_receiver: [N, 12] additional weights of the receiver.
        of_links: [L, 12] additional weights, averaged over the route's links.
    """
    links, first_link = hops.links, hops.first_link
    out = np.zeros((len(hops.source), len(own)), np.float32)
    for hop in range(len(out)):
        first, last = first_link[hop], first_link[hop + 1]
        for i in range(first, last):
            for j in range(len(own)):
                out[hop, j] += of_links[links[i], j]
        share = np.float32(1) / np.float32(last - first)
        sender, receiver = hops.source[hop], hops.target[hop]
        for j in range(len(own)):
            out[hop, j] *= share
            out[hop, j] += own[j] + of_sender[sender, j] + of_receiver[receiver, j]
    return out


@kernel(fastmath=True)
def times(x: Numbers, y: Numbers) -> Numbers:
    """[A, C] the product of [A, B] and [B, C]. Threads of a library would wait for each other."""
    out = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(y.shape[1]):
                out[row, j] += x[row, i] * y[i, j]
    return out


@kernel(fastmath=True)
def rectified_sums(messages: Numbers, weights: Numbers, bias: Numbers, mask: Booleans) -> Numbers:
    """[A, D] the rectified linear map of each row's messages; 0 for padding.

    Args:
        messages: [M, A, D] messages to each row, by kind.
        weights: [M, D, D] weights by kind.
        bias: [D] bias.
        mask: [A] whether each row exists; others are padding.
    """
    rows, width = messages.shape[1:]
    out = np.zeros((rows, width), np.float32)
    change = np.empty(width, np.float32)
    for row in range(rows):
        if not mask[row]:
            continue
        for j in range(width):
            change[j] = bias[j]
        for kind in range(messages.shape[0]):
            for i in range(width):
                value = messages[kind, row, i]
                for j in range(width):
                    change[j] += value * weights[kind, i, j]
        for j in range(width):
            out[row, j] = max(change[j], np.float32(0))
    return out
