"""Hops over links as compiled loops take them: ragged arrays, built here once for all of them.

A loop reads what it needs at its head: wide tuples cost at each call.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class HopTable(NamedTuple):
    """Who can send to whom, over which links. H hops, L links, N servers by rank.

    A hop may stand for one transfer of a route that carries several in a round, and a link for an
    orbit of links.
    """

    source: Integers
    """[H] server that each hop leaves."""
    target: Integers
    """[H] server that it enters."""
    links: Integers
    """Of the hops' routes, one route after the other, each in its order."""
    first_link: Integers
    """[H+1] where each hop's links start."""
    leaving: Integers
    """Hops by the server that they leave, ascending for each."""
    first_leaving: Integers
    """[N+1] where each server's start."""
    entering: Integers
    """Hops by the server that they enter, ascending for each."""
    first_entering: Integers
    """[N+1] where each server's start."""


class HopsOver(NamedTuple):
    """Hops by link: `HopTable.links` the other way round."""

    hop: Integers
    """Hops over each link, one link after the other, ascending for each."""
    first: Integers
    """[L+1] where each link's hops start."""


def hop_table(
    source: NDArray, target: NDArray, links: NDArray, first_link: NDArray, servers: int
) -> HopTable:
    """The table of some hops; see its fields.

    Args:
        source: [H] ranks.
        target: [H] ranks.
        links: of the routes, one after the other.
        first_link: [H+1] where each route's links start.
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
    """Places by their keys, ascending for each, and [number + 1] where each key's start.

    Args:
        keys: below `number`.
        number: of different keys.
    """
    order = np.argsort(keys, kind="stable")
    return order, integers(np.searchsorted(keys[order], np.arange(number + 1)))


def integers(array: NDArray) -> Integers:
    """The array in the one type that loops are compiled for."""
    return np.ascontiguousarray(array, np.int64)
