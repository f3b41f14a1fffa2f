"""Translations: groups that shift the coordinates of a network's nodes, in closed form."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradweave.common.specification import UNNAMED, parse_spec
from gradweave.errors import SpecError, TopologyError
from gradweave.topology.topology import MAX_NODES, Topology

MAX_AXES = 64
"""Largest number of axes and of layers accepted, a guard against malformed files."""


@dataclasses.dataclass(frozen=True)
class Translations:
    """A product of cyclic groups whose elements shift the coordinates of nodes, modulo their sizes.

    Nodes are numbered layer by layer. A layer is a grid of some of the axes, numbered with its last
    axis running fastest. A shift moves a node within its layer; axes that the layer lacks have no
    effect on it. Whether the shifts are automorphisms depends on the network's links:
    `gradweave.verify` checks it.

    Raises:
        TopologyError: for sizes out of range, or a layer of axes that do not exist.

    >>> two = Translations(sizes=(2, 3), layers=((0, 1), (1,)))  # six servers, three switches
    >>> two.order, two.num_nodes
    (6, 9)
    >>> two.moved([0, 5, 8], [1, 1])
    array([4, 0, 6])
    """

    sizes: tuple[int, ...]
    """The size of each axis."""
    layers: tuple[tuple[int, ...], ...]
    """The axes of each layer, slowest first."""
    fixed: tuple[int, ...] = ()
    """Axes that are never shifted, such as that of a box's switches."""

    def __post_init__(self) -> None:
        axes = range(len(self.sizes))
        if not (1 <= len(self.layers) <= MAX_AXES and len(self.sizes) <= MAX_AXES):
            raise TopologyError(
                f"symmetry: expected 1 to {MAX_AXES} layers and at most {MAX_AXES} axes"
            )
        wrong = [size for size in self.sizes if not 1 <= size <= MAX_NODES]
        if wrong:
            raise TopologyError(f"symmetry: sizes must be 1 to {MAX_NODES:,}, got {wrong[0]}")
        for layer in (*self.layers, self.fixed):
            if len(set(layer)) < len(layer) or not set(layer) <= set(axes):
                raise TopologyError(
                    f"symmetry: a layer has axes 0 to {len(axes) - 1}, each at most once; got "
                    f"{list(layer)}"
                )

    @cached_property
    def moving(self) -> tuple[int, ...]:
        """The axes that are shifted, without those of size 1; an element has a shift for each."""
        axes = range(len(self.sizes))
        return tuple(axis for axis in axes if axis not in self.fixed and self.sizes[axis] > 1)

    @property
    def order(self) -> int:
        """G, the number of elements."""
        return math.prod(self.sizes[axis] for axis in self.moving)

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The first node of each layer, and the number of nodes."""
        first = [0]
        for layer in self.layers:
            first.append(first[-1] + math.prod(self.sizes[axis] for axis in layer))
        return tuple(first)

    @property
    def num_nodes(self) -> int:
        """V, the number of nodes in all layers."""
        return self.first[-1]

    def layer_of(self, nodes: ArrayLike) -> NDArray[np.int64]:
        """The layer of each node, any shape."""
        return np.searchsorted(np.array(self.first), np.asarray(nodes), side="right") - 1

    @cached_property
    def has(self) -> NDArray[np.bool_]:
        """[layers, axes in `moving`] whether each layer has each axis."""
        return self._strides > 0

    @cached_property
    def _strides(self) -> NDArray[np.int32]:
        """[layers, axes in `moving`] distance of nodes one step apart, 0 along missing axes."""
        strides = np.zeros((len(self.layers), len(self.moving)), np.int32)
        for layer, axes in enumerate(self.layers):
            for place, axis in enumerate(self.moving):
                if axis in axes:
                    inner = axes[axes.index(axis) + 1 :]
                    strides[layer, place] = math.prod(self.sizes[other] for other in inner)
        return strides

    @cached_property
    def _coordinates(self) -> NDArray[np.int32]:
        """[axes in `moving`, V] every node's coordinates, 0 along axes that its layer lacks."""
        found = np.zeros((len(self.moving), self.num_nodes), np.int32)
        for layer, strides in enumerate(self._strides):
            nodes = slice(*self.first[layer : layer + 2])
            place = np.arange(nodes.stop - nodes.start)
            for axis, stride in enumerate(strides.tolist()):
                if stride:
                    found[axis, nodes] = place // stride % self.sizes[self.moving[axis]]
        return found

    @cached_property
    def orbit(self) -> NDArray[np.int32]:
        """[V] the first node of each node's orbit: that whose shifted coordinates are all 0."""
        nodes = np.arange(self.num_nodes)
        steps = self._strides[self.layer_of(nodes)]
        return (nodes - (steps * self._coordinates.T).sum(axis=1)).astype(np.int32)

    def coordinates(self, nodes: ArrayLike) -> NDArray[np.int64]:
        """[..., axes in `moving`] each node's coordinates, 0 along axes that its layer lacks."""
        return np.moveaxis(self._coordinates[:, np.asarray(nodes)], 0, -1).astype(np.int64)

    def moved(self, nodes: ArrayLike, shift: ArrayLike) -> NDArray[np.int64]:
        """Where shifts move nodes.

        Args:
            nodes: node ids, any shape.
            shift: [..., axes in `moving`] the shift along each of them; the leading dimensions
                broadcast against those of `nodes`.
        """
        nodes, shift = np.asarray(nodes), np.asarray(shift, np.int32)
        layer = self.layer_of(nodes) if len(self.layers) > 1 else np.zeros((), np.int32)
        image = np.broadcast_to(
            self.orbit[nodes], np.broadcast_shapes(nodes.shape, shift.shape[:-1])
        )
        for place, axis in enumerate(self.moving):
            to = (self._coordinates[place, nodes] + shift[..., place]) % self.sizes[axis]
            image = image + to * self._strides[layer, place]
        return image.astype(np.int64)

    def shift_between(self, source: ArrayLike, target: ArrayLike) -> NDArray[np.int64]:
        """[..., axes in `moving`] the shift from each source to its target, 0 along missing axes.

        Args:
            source: nodes.
            target: nodes of the same layers.
        """
        sizes = np.array([self.sizes[axis] for axis in self.moving], np.int64)
        return (self.coordinates(target) - self.coordinates(source)) % sizes

    def link_orbits(
        self, source: ArrayLike, target: ArrayLike
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The orbits of link directions, and the number of elements that keep each in place.

        Args:
            source: [M] node that each direction leaves.
            target: [M] node that it enters.

        Returns:
            [M] a number for each orbit, and [M] the order of each direction's stabiliser.
        """
        ends = [np.asarray(source, np.int64), np.asarray(target, np.int64)]
        has_source, has_target = (self.has[self.layer_of(nodes)] for nodes in ends)
        # The source goes where its coordinates are 0; axes that it lacks bring the target there.
        back = np.where(has_source, *map(self.coordinates, ends))
        first = [self.moved(nodes, -back) for nodes in ends]
        sizes = np.array([self.sizes[axis] for axis in self.moving], np.int64)
        keeps = np.where(has_source | has_target, 1, sizes).prod(axis=-1)
        return first[0] * self.num_nodes + first[1], keeps

    def generators(self) -> list[NDArray[np.int64]]:
        """[V] each: where a shift by one along each axis of `moving` moves every node."""
        nodes, steps = np.arange(self.num_nodes), np.eye(len(self.moving), dtype=np.int64)
        return [self.moved(nodes, step) for step in steps]

    def elements(self) -> NDArray[np.int64]:
        """[G, axes in `moving`] all elements, in the order of `gradweave.topology.free_groups`.

        A breadth-first search from the identity finds them by the sum of their shifts, then with
        larger shifts along earlier axes first.
        """
        sizes = [self.sizes[axis] for axis in self.moving]
        shifts = np.indices(sizes).reshape(len(sizes), -1)
        return shifts[:, np.lexsort([*-shifts[::-1], shifts.sum(axis=0)])].T


def translations(topology: Topology) -> Translations | None:
    """The shifts under which a network of a known family looks the same, or None.

    They come from the name alone; the callers check them against the links.

    Args:
        topology: the network.

    >>> import gradweave as gw
    >>> translations(gw.topology.bcube(n=3, k=1))
    Translations(sizes=(3, 3), layers=((0, 1), (0,), (1,)), fixed=())
    """
    try:
        family, values = parse_spec(topology.name)
    except SpecError:
        return None
    grid = "torus" if family.startswith("tpu_") else family
    found = grid_translations(grid, values, topology.num_servers) or _fabric(family, values)
    return found if found is not None and found.num_nodes == topology.num_nodes else None


def grid_translations(family: str, values: Mapping[str, str], count: int) -> Translations | None:
    """The shifts of a family in which a server's id is its coordinates, or None.

    Args:
        family: its name.
        values: parameters by key, as in a specification.
        count: number of servers, for which there are none if the parameters give another.
    """
    n, k = (size_in_name(values.get(key, "")) for key in "nk")
    sizes: tuple[int, ...] = (count,)
    if values.get("wrap", "all") != "all":
        return None
    if family == "bcube" and k < count.bit_length():
        sizes = (n,) * (k + 1)
    elif family in ("torus", "hyperx"):
        text = values.get(UNNAMED, values.get("dimensions", ""))
        sizes = tuple(size_in_name(size) for size in text.split("x"))
    elif family == "hypercube":
        sizes = (2,) * (count.bit_length() - 1)
    elif family == "fat_tree" and k % 2 == 0:
        sizes = (k, k // 2, k // 2)
    elif family not in ("ring", "circulant", "complete", "star"):
        return None
    # A name may be anything: nothing is built before the sizes are known to fit.
    if math.prod(sizes) != count or len(sizes) > MAX_AXES:
        return None
    every = tuple(range(len(sizes)))
    above: Sequence[tuple[int, ...]] = ()
    if family == "bcube":  # the switches of level i lack digit i
        above = [tuple(axis for axis in every if axis != k - level) for level in range(k + 1)]
    elif family == "star":
        above = [()]
    elif family == "hyperx" and values.get("servers_per_switch") != "0":
        above = [every]
    elif family == "fat_tree":
        # Aggregation switches move as servers do, the core switches of each as edge switches do:
        # so every element except the identity moves every link.
        above = [(0, 1), (0, 2), (2, 1)]
    return Translations(sizes, (every, *above))


def _fabric(family: str, values: Mapping[str, str]) -> Translations | None:
    """Servers below leaves that are linked to all spines: racks, or boxes with rails."""
    from gradweave.topology.families.machines import BOXES

    def number(key: str, default: int) -> int:
        return size_in_name(values[key]) if key in values else default

    spines = number("spines", 0)
    if family == "leaf_spine":
        leaves, per_leaf = number("leaves", 0), number("servers_per_leaf", 0)
        if min(leaves, per_leaf, spines) < 1:
            return None
        # Spines shift along an axis of the servers as far as their numbers have a common factor:
        # elements that kept the links to the spines in place would bring more images over these.
        shared = math.gcd(per_leaf, spines)
        sizes = (leaves, per_leaf // shared, shared, spines // shared)
        return Translations(sizes, ((0, 1, 2), (0,), (2, 3)), fixed=(3,))
    if family not in BOXES:
        return None
    box, boxes, rails = BOXES[family], number("boxes", 1), number("rails", 1)
    group, switches = number("boxes_per_leaf", boxes), number("nvswitches", 1)
    if min(boxes, rails, group, switches) < 1 or boxes % group or box.gpus % rails:
        return None
    pairs = sum(map(len, box.wiring.values()))
    if not box.nvlinks and (len(box.wiring) > 1 or 2 * pairs < box.gpus * (box.gpus - 1)):
        return None  # its GPUs are not all alike
    # The boxes of a group take turns at the spines, as many as there are common turns.
    shared = math.gcd(group, spines) if spines else 1
    sizes = (boxes // group, group // shared, shared, box.gpus // rails, rails, switches)
    gpus: tuple[int, ...] = (0, 1, 2, 3, 4)
    layers: list[tuple[int, ...]] = [gpus]
    if box.nvlinks:
        layers.append((0, 1, 2, 5))
    if boxes > 1:
        layers += [gpus, (0, 4)]
    if spines:
        layers.append((2, 6))
    return Translations((*sizes, max(spines, 1) // shared), tuple(layers), fixed=(5, 6))


def size_in_name(text: str) -> int:
    """A size in a name, or 0 if no network can have it."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
