"""Machines: boxes and racks of GPUs with their links, cards, rails and spines."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.drawing import MAX_DRAWN, circle, evenly
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.rated import LinkGroup, exact_rate, rated_topology
from gradweave.topology.topology import DEVICE_OVERHEAD_S, Link, Topology
from gradweave.topology.units import exact_bandwidth

Wiring = Mapping[int, Sequence[tuple[int, int]]]
"""Pairs of GPUs by their number of parallel links."""


@dataclasses.dataclass(frozen=True)
class Box:
    """The published figures of a box or rack of GPUs; bandwidths are those of one direction."""

    summary: str
    gpus: int
    link_bytes_per_s: float
    """Of all links between a GPU and its NVSwitches together, or of one direct link."""
    source: str
    nvlinks: int = 0
    """Links between a GPU and its NVSwitches; 0 if GPUs are linked directly."""
    wiring: Wiring = dataclasses.field(default_factory=dict)
    """Direct links."""
    nic_bytes_per_s: float | None = None
    """Bandwidth of each GPU's network card; None if several GPUs share a card."""
    positions: Sequence[tuple[float, float]] = ()
    """Where to draw the GPUs of a box with direct links."""

    @property
    def link(self) -> Link:
        """Default properties of its links; latency and overhead are not published: assumed."""
        return Link(bandwidth_bytes_per_s=self.link_bytes_per_s, overhead_s=DEVICE_OVERHEAD_S)


# Numbered as `nvidia-smi topo -m` shows them on a DGX-1V and on similar boxes of public clouds.
_DGX1V = {
    1: [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)],
    2: [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)],
}
# Two squares, the rear one shifted: no link crosses a third GPU.
_SQUARES = [(0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (1.0, 0.0)]
_SQUARES += [(x + 1.9, y + 0.45) for x, y in _SQUARES]

# Numbered as the topology models of RCCL do; the two dies of a card are 2i and 2i+1.
_MI250 = {
    1: [
        *((0, 2), (1, 2), (1, 3), (1, 5), (2, 6), (4, 12), (5, 13), (5, 14)),
        *((6, 13), (6, 14), (7, 15), (8, 10), (9, 10), (9, 11), (9, 13), (10, 14)),
    ],
    2: [(0, 4), (3, 7), (8, 12), (11, 15)],
    4: [(2 * card, 2 * card + 1) for card in range(8)],
}
# A quarter of the box in each corner, the dies that connect the quarters in the middle.
_QUARTERS = [(0.0, 3.0), (0.75, 2.0), (0.75, 1.0), (0.0, 0.0)]
_QUARTERS += [(1.5, 3.8), (1.8, 2.4), (1.8, 0.6), (1.5, -0.8)]
_QUARTERS += [(4.9 - x, y) for x, y in _QUARTERS]

BOXES = {
    "dgx1v": Box(
        "DGX-1V: 8 V100 GPUs in a hybrid cube mesh of single and double NVLinks.",
        gpus=8,
        link_bytes_per_s=20e9,  # as NCCL assumes; the peak is 25 GB/s
        wiring=_DGX1V,
        positions=_SQUARES,
        source="NVIDIA, 'NVIDIA DGX-1 with Tesla V100 system architecture', 2017",
    ),
    "a100": Box(
        "Boxes of 8 A100 GPUs on NVSwitches, with rails and spines.",
        gpus=8,
        link_bytes_per_s=300e9,  # twelve NVLinks of 25 GB/s
        nvlinks=12,
        nic_bytes_per_s=25e9,  # ConnectX-6, 200 Gbit/s
        source="NVIDIA, 'NVIDIA DGX A100 system architecture', 2020; the model of ForestColl",
    ),
    "h100": Box(
        "Boxes of 8 H100 or H200 GPUs on NVSwitches, with rails and spines.",
        gpus=8,
        link_bytes_per_s=450e9,  # eighteen NVLinks of 25 GB/s: 900 GB/s in both directions
        nvlinks=18,
        nic_bytes_per_s=50e9,  # ConnectX-7, 400 Gbit/s
        source="NVIDIA, 'DGX H100/H200 user guide', 2022",
    ),
    "b200": Box(
        "Boxes of 8 B200 GPUs on NVSwitches, with rails and spines.",
        gpus=8,
        link_bytes_per_s=900e9,  # eighteen NVLinks of 50 GB/s: 14.4 TB/s in both directions
        nvlinks=18,
        nic_bytes_per_s=50e9,  # ConnectX-7, 400 Gbit/s
        source="NVIDIA, 'DGX B200 datasheet', 2024",
    ),
    "gb200_nvl72": Box(
        "Racks of 72 Blackwell GPUs on NVLink switches, with rails and spines.",
        gpus=72,  # 18 trays of 4
        link_bytes_per_s=900e9,  # 130 TB/s of the rack in both directions, divided by 72 GPUs
        nvlinks=18,
        nic_bytes_per_s=50e9,  # four ConnectX-7 of 400 Gbit/s in a tray
        source="NVIDIA, 'DGX GB200 user guide', hardware, 2025",
    ),
    "mi250": Box(
        "Box of 8 MI250 cards: 16 dies with irregular Infinity Fabric links.",
        gpus=16,
        link_bytes_per_s=50e9,  # the peak of a link
        wiring=_MI250,
        positions=_QUARTERS,
        source="the 16-die model among the topologies of RCCL; ForestColl's figure shows the same "
        "graph with other numbers",
    ),
    "mi300x": Box(
        "Boxes of 8 MI300X GPUs, all linked directly, with rails and spines.",
        gpus=8,
        link_bytes_per_s=64e9,  # 16 lanes of 32 Gbit/s; AMD states 128 GB/s in both directions
        wiring={1: list(itertools.combinations(range(8), 2))},
        positions=[(float(4 * x), float(4 * y)) for x, y in circle(8, start=np.pi / 8)],
        nic_bytes_per_s=50e9,  # as in Azure's ND-MI300X-v5; AMD's platform has no cards itself
        source="AMD, 'Instinct MI300X platform data sheet', 2023",
    ),
}
"""Machines by name, with the source of their figures."""


def gpu_boxes(
    machine: str,
    boxes: int = 1,
    *,
    nvswitches: int = 1,
    rails: int = 1,
    boxes_per_leaf: int | None = None,
    spines: int = 0,
    oversubscription: float | Fraction | str = 1,
    nic_bytes_per_s: float | None = None,
    link: Link | None = None,
) -> Topology:
    """Makes one or several boxes of GPUs, or racks such as the NVL72, which count as boxes here.

    Several boxes are connected through one network card per GPU, modelled as a switch of two ports,
    and leaf switches without limits: card i of every box is on rail i mod `rails`, which has one
    leaf for every `boxes_per_leaf` boxes. Each leaf is linked to each spine. A box's NVSwitches are
    one switch, since the hardware spreads each transfer over them all and a schedule cannot choose.
    PCIe and processors are left out: a GPU reaches only its card, at the card's speed. Servers are
    numbered box by box; then come the NVSwitches box by box, the cards, the leaves rail by rail
    within each group of boxes, and the spines.

    Args:
        machine: a name in `BOXES`, which has the figures and their sources.
        boxes: number of boxes, at least 1; a single one has no cards.
        nvswitches: switches among which a GPU's NVLinks are divided: 1, or any divisor of their
            number.
        rails: leaves of each group of boxes: a divisor of a box's GPUs.
        boxes_per_leaf: boxes in a group, a divisor of `boxes`; all if not given.
        spines: number of spine switches; at least 1 if there are several groups.
        oversubscription: ratio of the bandwidth of a leaf's cards to that of its links to the
            spines; a number, or a fraction such as ``"3/2"``.
        nic_bytes_per_s: bandwidth of a card; if not given, the published one.
        link: bandwidth of all links between a GPU and its NVSwitches together, or of one direct
            link; that of `Box.link` if not given. The latency is that of every link.

    Raises:
        TopologyError: naming the parameter.

    >>> gpu_boxes("a100"), gpu_boxes("h100", boxes=2)
    (Topology('a100': 8 servers, 1 switch, 8 links),
     Topology('h100:boxes=2': 16 servers, 19 switches, 48 links))
    """
    if machine not in BOXES:
        raise TopologyError(f"machine must be one of {', '.join(BOXES)}, got {machine!r:.40}")
    box = BOXES[machine]
    boxes = integer(machine, "boxes", boxes, least=1)
    nvswitches = _divisor(machine, "nvswitches", nvswitches, box.nvlinks or 1)
    rails = _divisor(machine, "rails", rails, box.gpus)
    group = _divisor(machine, "boxes_per_leaf", boxes_per_leaf or boxes, boxes)
    spines = integer(machine, "spines", spines, least=0 if group == boxes else 1)
    excess = exact_rate(machine, "oversubscription", oversubscription)
    nic = box.nic_bytes_per_s if nic_bytes_per_s is None else nic_bytes_per_s
    if nic is None and boxes > 1:
        raise TopologyError(f"{machine}: its GPUs share cards; give nic, the bandwidth for a GPU")
    if nic is not None and not (isinstance(nic, int | float) and 0 < nic < float("inf")):
        raise TopologyError(f"{machine}: nic must be a positive bandwidth, got {nic!r:.40}")
    stated = {
        "boxes": (boxes, 1),
        "nvswitches": (nvswitches, 1),
        "rails": (rails, 1),
        "boxes_per_leaf": (group, boxes),
        "spines": (spines, 0),
        "oversubscription": (excess, 1),
        "nic": (nic, box.nic_bytes_per_s),
    }
    given = {key: value for key, (value, default) in stated.items() if value != default}
    if nic is not None and "nic" in given:
        given["nic"] = exact_bandwidth(nic)
    outside = [key for key in given if key not in ("boxes", "nvswitches")]
    if boxes == 1 and outside:
        raise TopologyError(f"{machine}: {outside[0]} is for several boxes; give boxes=2 or more")
    if excess != 1 and not spines:
        raise TopologyError(f"{machine}: oversubscription is that of leaves; give spines=1 or more")
    body = ":".join(filter(None, (machine, ",".join(f"{k}={v}" for k, v in given.items()))))
    name = spec_name(body, link, box.link)
    link = link or box.link
    fabric = _Fabric(box, boxes, nvswitches if box.nvlinks else 0, rails, group, spines)
    check_size(name, fabric.servers + fabric.switches, fabric.num_links)
    groups = fabric.inside()
    if boxes > 1 and nic is not None:
        rate = Fraction(nic) / _positive(machine, link.bandwidth_bytes_per_s)
        groups.append(LinkGroup(fabric.card_links(), rate))
        if spines:
            up = rate * group * (box.gpus // rails) / spines / excess
            groups.append(LinkGroup(fabric.spine_links(), up))
    return rated_topology(
        name,
        groups,
        servers=fabric.servers,
        switches=fabric.switches,
        link=link,
        positions=fabric.positions() if fabric.servers <= MAX_DRAWN // 3 else None,
    )


@dataclasses.dataclass(frozen=True)
class _Fabric:
    """Numbers of nodes and links; everything outside the boxes is absent from a single box."""

    box: Box
    boxes: int
    nvswitches: int
    rails: int
    group: int
    spines: int

    @property
    def servers(self) -> int:
        return self.boxes * self.box.gpus

    @property
    def first_card(self) -> int:
        return self.servers + self.boxes * self.nvswitches

    @property
    def leaves(self) -> int:
        return self.boxes // self.group * self.rails

    @property
    def switches(self) -> int:
        outside = self.servers + self.leaves + self.spines if self.boxes > 1 else 0
        return self.boxes * self.nvswitches + outside

    @property
    def num_links(self) -> int:
        direct = self.boxes * sum(map(len, self.box.wiring.values()))
        outside = 2 * self.servers + self.leaves * self.spines if self.boxes > 1 else 0
        return self.servers * self.nvswitches + direct + outside

    def inside(self) -> list[LinkGroup]:
        """Each GPU to all NVSwitches of its box, and direct links."""
        gpus = self.box.gpus
        groups = [
            LinkGroup(
                (np.arange(self.boxes)[:, None, None] * gpus + np.array(pairs)).reshape(-1, 2),
                Fraction(count),
            )
            for count, pairs in self.box.wiring.items()
        ]
        if self.nvswitches:
            gpu, switch = np.divmod(np.arange(self.servers * self.nvswitches), self.nvswitches)
            of_box = self.servers + gpu // gpus * self.nvswitches + switch
            groups.append(LinkGroup(np.stack([gpu, of_box], axis=1), Fraction(1, self.nvswitches)))
        return groups

    def card_links(self) -> NDArray[np.int64]:
        """Each GPU to its card, each card to its leaf."""
        gpu = np.arange(self.servers)
        card = self.first_card + gpu
        unit = gpu // (self.box.gpus * self.group)
        leaf = self.first_card + self.servers + unit * self.rails + gpu % self.rails
        return np.concatenate([np.stack([gpu, card], axis=1), np.stack([card, leaf], axis=1)])

    def spine_links(self) -> NDArray[np.int64]:
        """Each leaf to each spine."""
        leaf, spine = np.divmod(np.arange(self.leaves * self.spines), self.spines)
        first = self.first_card + self.servers
        return np.stack([first + leaf, first + self.leaves + spine], axis=1)

    def positions(self) -> NDArray[np.float64]:
        """GPUs of all boxes in a row, NVSwitches below; cards, leaves and spines above."""
        gpus = self.box.gpus
        # A box with direct links is as wide as its drawing; its cards stand in a row above it.
        drawing = np.array(self.box.positions or [(x, 0.0) for x in evenly(gpus, gpus)])
        drawing = drawing - (drawing.min(0) + drawing.max(0)) / 2
        width = gpus + 1.5
        centre = evenly(self.boxes, self.boxes * width)
        if self.boxes == 1 and self.box.positions:
            return drawing
        base = float(drawing[:, 1].max())

        def row(x: NDArray, y: float) -> NDArray[np.float64]:
            return np.stack([x.ravel(), np.full(x.size, y)], axis=1)

        servers = (drawing + row(centre, 0.0)[:, None]).reshape(-1, 2)
        below = centre[:, None] + evenly(self.nvswitches, gpus if self.nvswitches > 1 else 1)
        parts = [servers, row(below, -2.0)] if self.nvswitches else [servers]
        if self.boxes > 1:
            parts += [
                row(centre[:, None] + evenly(gpus, gpus), base + 1),
                row(evenly(self.leaves, self.boxes * width), base + 2 + self.boxes),
            ]
        if self.spines:
            spread = 0.8 * self.boxes * width
            parts.append(row(evenly(self.spines, spread), base + 3 + 2 * self.boxes))
        return np.concatenate(parts)


def _divisor(machine: str, parameter: str, value: int, of: int) -> int:
    value = integer(machine, parameter, value, least=1)
    if of % value:
        raise TopologyError(f"{machine}: {parameter} must divide {of}, got {value}")
    return value


def _positive(machine: str, bandwidth_bytes_per_s: float) -> Fraction:
    if not 0 < bandwidth_bytes_per_s < float("inf"):
        raise TopologyError(
            f"{machine}: bandwidth must be positive and finite, "
            f"got {bandwidth_bytes_per_s:g} bytes/s"
        )
    return Fraction(bandwidth_bytes_per_s)
