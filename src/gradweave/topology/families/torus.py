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
    sizes = _sizes(family, dimensions)
    name = f"{family}:{'x'.join(map(str, sizes))}"
    nodes = math.prod(sizes)
    # Links of a dimension: one per node and its successor, less those that would wrap around.
    wrapped = [wraps and size > 2 for size in sizes]
    count = sum(nodes - (not c) * nodes // s for s, c in zip(sizes, wrapped, strict=True))
    check_size(name, nodes, count)
    if nodes < 2:
        raise TopologyError(f"{name}: 1 server; give at least one dimension of size 2 or more")
    ids = np.arange(nodes).reshape(sizes)
    links = []
    for axis, closes in enumerate(wrapped):
        source = np.moveaxis(ids, axis, 0)
        target = np.roll(source, -1, axis=0)
        end = len(source) if closes else -1
        links.append(np.stack([source[:end].ravel(), target[:end].ravel()], axis=1))
    return Topology.from_links(
        spec_name(name, link),
        servers=nodes,
        switches=0,
        links=np.concatenate(links),
        link=link,
        positions=_positions(sizes, wraps=wraps) if nodes <= MAX_DRAWN else None,
    )


def _sizes(family: str, dimensions: Sequence[int]) -> tuple[int, ...]:
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


def _positions(sizes: tuple[int, ...], *, wraps: bool) -> NDArray[np.float64]:
    real = [size for size in sizes if size > 1]
    if wraps and len(real) == 1:
        return circle(real[0])
    grid = np.stack(np.unravel_index(np.arange(math.prod(real)), real), axis=1)
    return oblique(grid, real, bow=0.28 if wraps else 0.0)
