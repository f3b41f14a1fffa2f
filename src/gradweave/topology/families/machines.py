"""Machines: boxes of GPUs with their links, and tori of TPUs."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.drawing import MAX_DRAWN, evenly
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.families.torus import torus
from gradweave.topology.rated import LinkGroup, rated_topology
from gradweave.topology.topology import DEVICE_OVERHEAD_S, Link, Topology
from gradweave.topology.units import exact_bandwidth

DGX1V_LINK = Link(bandwidth_bytes_per_s=20e9, overhead_s=DEVICE_OVERHEAD_S)
"""One NVLink of the second generation at the 20 GB/s that NCCL assumes; its peak is 25 GB/s."""

A100_LINK = Link(bandwidth_bytes_per_s=300e9, overhead_s=DEVICE_OVERHEAD_S)
"""The twelve NVLinks of an A100 together, at their peak of 25 GB/s each."""

A100_NIC_BYTES_PER_S = 25e9
"""One 200 Gbit/s network card."""

MI250_LINK = Link(bandwidth_bytes_per_s=50e9, overhead_s=DEVICE_OVERHEAD_S)
"""One Infinity Fabric link at its peak."""

TPU_LINKS = {
    "v4": (3, Link(bandwidth_bytes_per_s=50e9, overhead_s=DEVICE_OVERHEAD_S)),
    "v5e": (2, Link(bandwidth_bytes_per_s=50e9, overhead_s=DEVICE_OVERHEAD_S)),
    "v5p": (3, Link(bandwidth_bytes_per_s=100e9, overhead_s=DEVICE_OVERHEAD_S)),
    "v6e": (2, Link(bandwidth_bytes_per_s=100e9, overhead_s=DEVICE_OVERHEAD_S)),
}
"""By generation: dimensions of the torus, and one inter-chip link: the published bandwidth of a
chip (v5e 1600, v5p 4800, v6e 3200 Gbit/s; v4 six links of 50 GB/s) divided by its links."""

_GPUS = 8

# Numbered as `nvidia-smi topo -m` shows them on a DGX-1V and on similar boxes of public clouds.
_DGX1V = {
    1: [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)],
    2: [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)],
}

# Numbered as the topology models of RCCL do; the two dies of a card are 2i and 2i+1.
_MI250 = {
    1: [
        *((0, 2), (1, 2), (1, 3), (1, 5), (2, 6), (4, 12), (5, 13), (5, 14)),
        *((6, 13), (6, 14), (7, 15), (8, 10), (9, 10), (9, 11), (9, 13), (10, 14)),
    ],
    2: [(0, 4), (3, 7), (8, 12), (11, 15)],
    4: [(2 * card, 2 * card + 1) for card in range(8)],
}


def dgx1v(*, link: Link | None = None) -> Topology:
    """Makes a DGX-1V: 8 V100 GPUs in a hybrid cube mesh of single and double NVLinks.

    A double link is one of capacity 2; each GPU has six NVLinks. PCIe, processors and network cards
    are left out: they are several times slower, and NCCL does not use them inside the box either.

    Args:
        link: properties of one NVLink; `DGX1V_LINK` if not given.

    Source: NVIDIA, "NVIDIA DGX-1 with Tesla V100 system architecture", 2017; numbering as in
        ``nvidia-smi topo -m``.

    >>> dgx1v()
    Topology('dgx1v': 8 servers, 0 switches, 16 links)
    """
    # Two squares, the rear one shifted: no link crosses a third GPU.
    square = np.array([(0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (1.0, 0.0)])
    positions = np.concatenate([square, square + np.array([1.9, 0.45])])
    return _direct("dgx1v", _DGX1V, link, DGX1V_LINK, positions)


def mi250_box(*, link: Link | None = None) -> Topology:
    """Makes a box of 8 MI250 cards: 16 dies, each a server, with irregular Infinity Fabric links.

    The two dies of a card share four links, other pairs one, two or none; each die has seven links
    in all. PCIe, processors and network cards are left out.

    Args:
        link: properties of one Infinity Fabric link; `MI250_LINK` if not given.

    Source: the 16-die model among the topologies of RCCL; ForestColl's figure shows the same
        graph with other numbers.

    >>> mi250_box()
    Topology('mi250': 16 servers, 0 switches, 28 links)
    """
    # A quarter of the box in each corner, the dies that connect the quarters in the middle.
    corner = np.array([(0.0, 3.0), (0.75, 2.0), (0.75, 1.0), (0.0, 0.0)])
    inner = np.array([(1.5, 3.8), (1.8, 2.4), (1.8, 0.6), (1.5, -0.8)])
    left = np.concatenate([corner, inner])
    positions = np.concatenate([left, left * [-1.0, 1.0] + [4.9, 0.0]])
    return _direct("mi250", _MI250, link, MI250_LINK, positions)


def a100_box(
    boxes: int = 1,
    *,
    nvswitches: int = 1,
    rails: int = 1,
    nic_bytes_per_s: float = A100_NIC_BYTES_PER_S,
    link: Link | None = None,
) -> Topology:
    """Makes one or several boxes of 8 A100 GPUs on NVSwitches.

    Several boxes are connected through one network card per GPU, modelled as a switch of two ports,
    and through outer switches without limits; card i of every box is on outer switch i mod `rails`.
    The box's six NVSwitches are one switch, since the hardware spreads each transfer over them all
    and a schedule cannot choose. PCIe is left out: a GPU reaches only its card,
    at the card's speed. Servers are numbered box by box; then come the NVSwitches box by box, the
    cards and the outer switches.

    Args:
        boxes: number of boxes, at least 1; a single one has no cards.
        nvswitches: switches among which a GPU's NVLinks are divided: 1, or any divisor of 12.
        rails: number of outer switches: a divisor of 8.
        nic_bytes_per_s: bandwidth of a card.
        link: bandwidth of all NVLinks of a GPU together, `A100_LINK` if not given; the latency is
            that of every link.

    Raises:
        TopologyError: naming the parameter.

    Source: NVIDIA, "NVIDIA DGX A100 system architecture", 2020; the model of ForestColl.

    >>> a100_box(), a100_box(boxes=2)
    (Topology('a100': 8 servers, 1 switch, 8 links),
     Topology('a100:boxes=2': 16 servers, 19 switches, 48 links))
    """
    link = link or A100_LINK
    boxes = integer("a100", "boxes", boxes, least=1)
    nvswitches = _divisor("nvswitches", nvswitches, 12)
    rails = _divisor("rails", rails, _GPUS)
    if not (isinstance(nic_bytes_per_s, int | float) and 0 < nic_bytes_per_s < float("inf")):
        raise TopologyError(f"a100: nic must be a positive bandwidth, got {nic_bytes_per_s!r:.40}")
    several = boxes > 1
    if not several and (rails > 1 or nic_bytes_per_s != A100_NIC_BYTES_PER_S):
        raise TopologyError("a100: rails and nic join several boxes; give boxes=2 or more")
    name = spec_name(_a100_name(boxes, nvswitches, rails, nic_bytes_per_s), link, A100_LINK)
    gpus = boxes * _GPUS
    cards, fabric = (gpus, rails) if several else (0, 0)
    switches = boxes * nvswitches + cards + fabric
    check_size(name, gpus + switches, gpus * nvswitches + 2 * cards)
    groups = [LinkGroup(_nvlinks(gpus, nvswitches), Fraction(1, nvswitches))]
    if several:
        rate = Fraction(nic_bytes_per_s) / _positive(link.bandwidth_bytes_per_s)
        groups.append(LinkGroup(_card_links(boxes, nvswitches, rails), rate))
    return rated_topology(
        name,
        groups,
        servers=gpus,
        switches=switches,
        link=link,
        positions=_box_positions(boxes, nvswitches, fabric) if gpus <= MAX_DRAWN // 3 else None,
    )


def _nvlinks(gpus: int, nvswitches: int) -> NDArray[np.int64]:
    """Each GPU to all NVSwitches of its box."""
    gpu, nvswitch = np.divmod(np.arange(gpus * nvswitches), nvswitches)
    return np.stack([gpu, gpus + gpu // _GPUS * nvswitches + nvswitch], axis=1)


def _card_links(boxes: int, nvswitches: int, rails: int) -> NDArray[np.int64]:
    """Each GPU to its card, each card to its outer switch."""
    gpu = np.arange(boxes * _GPUS)
    card = len(gpu) + boxes * nvswitches + gpu
    outer = len(gpu) + boxes * nvswitches + len(gpu) + gpu % rails
    return np.concatenate([np.stack([gpu, card], axis=1), np.stack([card, outer], axis=1)])


def tpu_torus(
    dimensions: Sequence[int], generation: str = "v4", *, link: Link | None = None
) -> Topology:
    """Makes a torus of TPU chips with the link rates of their generation.

    It is a `torus`: every dimension wraps around, as in the full cubes of a pod; smaller slices of
    a real pod may be meshes. Twisted tori are not modelled.

    Args:
        dimensions: size of each dimension; at most as many as the generation's torus has.
        generation: ``"v4"`` or ``"v5p"`` (up to three dimensions), ``"v5e"`` or ``"v6e"`` (up to
            two).
        link: properties of every link; as in `TPU_LINKS` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Google Cloud, "TPU v5p", "TPU v6e" (with v5e) system architecture; Jouppi et al., "TPU
        v4", ISCA 2023.

    >>> tpu_torus((4, 4, 4), generation="v5p")
    Topology('tpu_v5p:4x4x4': 64 servers, 0 switches, 192 links)
    """
    if generation not in TPU_LINKS:
        raise TopologyError(
            f"tpu: generation must be one of {', '.join(TPU_LINKS)}, got {generation!r:.40}"
        )
    max_dimensions, default = TPU_LINKS[generation]
    grid = torus(dimensions, link=link or default)
    sizes = grid.name.partition(":")[2].partition(",")[0]
    if sizes.count("x") >= max_dimensions:
        raise TopologyError(
            f"tpu_{generation}: dimensions must be at most {max_dimensions} sizes, got {sizes}"
        )
    name = spec_name(f"tpu_{generation}:{sizes}", link, default)
    return dataclasses.replace(grid, name=name)


def _direct(
    family: str,
    wiring: dict[int, list[tuple[int, int]]],
    link: Link | None,
    default: Link,
    positions: NDArray,
) -> Topology:
    """A box whose servers are linked directly; the wiring is by number of parallel links."""
    return Topology.from_links(
        spec_name(family, link, default),
        servers=len(positions),
        switches=0,
        links=[pair for pairs in wiring.values() for pair in pairs],
        capacity=[count for count, pairs in wiring.items() for _ in pairs],
        link=link or default,
        positions=positions,
    )


def _divisor(parameter: str, value: int, of: int) -> int:
    value = integer("a100", parameter, value, least=1)
    if of % value:
        raise TopologyError(f"a100: {parameter} must divide {of}, got {value}")
    return value


def _positive(bandwidth_bytes_per_s: float) -> Fraction:
    if not 0 < bandwidth_bytes_per_s < float("inf"):
        raise TopologyError(
            f"a100: bandwidth must be positive and finite, got {bandwidth_bytes_per_s:g} bytes/s"
        )
    return Fraction(bandwidth_bytes_per_s)


def _a100_name(boxes: int, nvswitches: int, rails: int, nic_bytes_per_s: float) -> str:
    parts = []
    if boxes > 1:
        parts.append(f"boxes={boxes}")
    if nvswitches > 1:
        parts.append(f"nvswitches={nvswitches}")
    if boxes > 1 and rails > 1:
        parts.append(f"rails={rails}")
    if boxes > 1 and nic_bytes_per_s != A100_NIC_BYTES_PER_S:
        parts.append(f"nic={exact_bandwidth(nic_bytes_per_s)}")
    return ":".join(filter(None, ("a100", ",".join(parts))))


def _box_positions(boxes: int, nvswitches: int, fabric: int) -> NDArray[np.float64]:
    """GPUs of all boxes in a row, NVSwitches below, cards and outer switches above."""
    width = _GPUS + 1.5
    centre = evenly(boxes, boxes * width)[:, None]

    def row(per_box: int, spread: float, y: float) -> NDArray[np.float64]:
        x = (centre + evenly(per_box, spread)).ravel()
        return np.stack([x, np.full(len(x), y)], axis=1)

    top = np.stack([evenly(fabric, boxes * width), np.full(fabric, 2 + boxes)], axis=1)
    below = row(nvswitches, _GPUS if nvswitches > 1 else 1, -2.0)
    return np.concatenate(
        [row(_GPUS, _GPUS, 0), below, *([row(_GPUS, _GPUS, 1), top] * (fabric > 0))]
    )
