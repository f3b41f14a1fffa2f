"""Torus and mesh: servers on a grid of any dimension, linked directly to their neighbours."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.drawing import MAX_DRAWN, circle, oblique
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import Link, Topology


def torus(dimensions: Sequence[int], *, link: Link | None = None) -> Topology:
    """Makes a torus: a grid of servers that wraps around in every dimension.

    Servers are numbered with the last dimension running fastest. Between the two servers of a
    dimension of size 2 there is one link, not two; a dimension of size 1 adds nothing.

    Args:
        dimensions: size of each dimension.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the dimension.

    >>> torus((4, 4))
    Topology('torus:4x4': 16 servers, 0 switches, 32 links)
    """
    return _grid("torus", dimensions, link, wraps=True)


def mesh(dimensions: Sequence[int], *, link: Link | None = None) -> Topology:
    """Makes a mesh: a grid of servers, each linked to its neighbours.

    Servers are numbered with the last dimension running fastest. A dimension of size 1 adds
    nothing.

    Args:
        dimensions: size of each dimension.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the dimension.

    >>> mesh((3, 3))
    Topology('mesh:3x3': 9 servers, 0 switches, 12 links)
    """
    return _grid("mesh", dimensions, link, wraps=False)


def _grid(family: str, dimensions: Sequence[int], link: Link | None, *, wraps: bool) -> Topology:
    sizes = grid_sizes(family, dimensions)
    name = f"{family}:{'x'.join(map(str, sizes))}"
    links = grid_links(name, sizes, [wraps] * len(sizes))
    return Topology.from_links(
        spec_name(name, link),
        servers=math.prod(sizes),
        switches=0,
        links=np.concatenate(links),
        link=link,
        positions=grid_positions(sizes, wraps=wraps),
    )


def grid_links(
    name: str, sizes: Sequence[int], wraps: Sequence[bool], twist: int = 0
) -> list[NDArray[np.int64]]:
    """The links of each dimension of a grid, [links, 2].

    Args:
        name: of the network, for messages.
        sizes: of each dimension.
        wraps: whether each dimension wraps around; one of size 2 has only one link between its
            servers all the same, unless twisted.
        twist: k: a link around a dimension of size k also moves k along those of size 2k.

    Raises:
        TopologyError: the network is too small or too large.
    """
    nodes = math.prod(sizes)
    # Links of a dimension: one per node and its successor, less those that would wrap around.
    wrapped = [wrap and size > 2 for wrap, size in zip(wraps, sizes, strict=True)]
    count = sum(nodes - (not c) * nodes // s for s, c in zip(sizes, wrapped, strict=True))
    check_size(name, nodes, count)
    if nodes < 2:
        raise TopologyError(f"{name}: 1 server; give at least one dimension of size 2 or more")
    ids = np.arange(nodes).reshape(sizes)
    links = []
    for axis, closes in enumerate(wrapped):
        source = np.moveaxis(ids, axis, 0)
        target = np.roll(source, -1, axis=0)
        if twist and sizes[axis] == twist:
            others = [size for place, size in enumerate(sizes) if place != axis]
            long = [place for place, size in enumerate(others) if size == 2 * twist]
            target[-1] = np.roll(target[-1], -twist, axis=long)
        end = len(source) if closes else -1
        links.append(np.stack([source[:end].ravel(), target[:end].ravel()], axis=1))
    return links


def grid_sizes(family: str, dimensions: Sequence[int]) -> tuple[int, ...]:
    """The sizes of a grid's dimensions, checked.

    Raises:
        TopologyError: naming the dimension.
    """
    try:
        sizes = tuple(dimensions)
    except TypeError:
        raise TopologyError(
            f"{family}: dimensions must be sizes such as (4, 4), got {dimensions!r:.40}"
        ) from None
    if not 1 <= len(sizes) <= 32:
        raise TopologyError(f"{family}: dimensions must be 1 to 32 sizes, got {len(sizes)}")
    return tuple(
        integer(family, f"dimensions[{place}]", size, least=1) for place, size in enumerate(sizes)
    )


def grid_positions(sizes: Sequence[int], *, wraps: bool) -> NDArray[np.float64] | None:
    """Where to draw a grid's servers; None for very large ones."""
    if math.prod(sizes) > MAX_DRAWN:
        return None
    real = [size for size in sizes if size > 1]
    if wraps and len(real) == 1:
        return circle(real[0])
    grid = np.stack(np.unravel_index(np.arange(math.prod(real)), real), axis=1)
    return oblique(grid, real, bow=0.28 if wraps else 0.0)
