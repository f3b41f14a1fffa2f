"""Hops over links as ragged arrays for compiled loops, built here once for all loops.

A loop reads the arrays it needs at its start: wide tuples are expensive to pass in each call.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class HopTable(NamedTuple):
    """The possible hops between servers, with their links. H hops, L links, N servers by rank.

    A hop may represent one transfer of a route that carries several per round, and a link an orbit
    of links.
    """

    source: Integers
    """[H] server that each hop leaves."""
    target: Integers
    """[H] server that each hop enters."""
    links: Integers
    """Links of the hops' routes, concatenated, each in its order."""
    first_link: Integers
    """[H+1] index of each hop's first link."""
    leaving: Integers
    """Hops by the server that they leave, ascending for each."""
    first_leaving: Integers
    """[N+1] index of each server's first hop in `leaving`."""
    entering: Integers
    """Hops by the server that they enter, ascending for each."""
    first_entering: Integers
    """[N+1] index of each server's first hop in `entering`."""


class HopsOver(NamedTuple):
    """Hops by link: the inverse of `HopTable.links`."""

    hop: Integers
    """Hops over each link, link by link, ascending for each."""
    first: Integers
    """[L+1] index of each link's first hop."""


def hop_table(
    source: NDArray, target: NDArray, links: NDArray, first_link: NDArray, servers: int
) -> HopTable:
    """The table of some hops; see its fields.

    Args:
        source: [H] ranks.
        target: [H] ranks.
        links: links of the routes, concatenated.
        first_link: [H+1] index of each route's first link.
        servers: N.
    """
    return HopTable(
        integers(source),
        integers(target),
        integers(links),
        integers(first_link),
        *grouped(source, servers),
        *grouped(target, servers),
    )


def hops_over(links: NDArray, first_link: NDArray, number: int) -> HopsOver:
    """Hops by link.

    Args:
        links: as in `HopTable`.
        first_link: as in `HopTable`.
        number: L.
    """
    entries, first = grouped(links, number)
    hop = np.repeat(np.arange(len(first_link) - 1), np.diff(first_link))
    return HopsOver(integers(hop[entries]), first)


def grouped(keys: NDArray, number: int) -> tuple[Integers, Integers]:
    """Indices sorted by key, ascending for each, and [number + 1] the start of each key.

    Args:
        keys: integers below `number`.
        number: number of different keys.
    """
    order = np.argsort(keys, kind="stable")
    return order, integers(np.searchsorted(keys[order], np.arange(number + 1)))


def number_within(group: NDArray) -> NDArray[np.int64]:
    """[M] how many earlier members of its group there are before each.

    Args:
        group: [M] number of each member's group.
    """
    order = np.argsort(group, kind="stable")
    ordered, number = group[order], np.empty(len(group), np.int64)
    number[order] = np.arange(len(group)) - np.searchsorted(ordered, ordered)
    return number


def integers(array: NDArray) -> Integers:
    """The array in the type for which loops are compiled."""
    return np.ascontiguousarray(array, np.int64)
