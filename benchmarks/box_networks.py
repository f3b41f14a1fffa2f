"""Clusters of equal boxes of GPUs: A100, H100 and MI250 kinds, on a spine, rails or leaf–spine."""

import dataclasses

import numpy as np

from gradweave.topology import Topology, gpu_boxes
from gradweave.topology.topology import DEVICE_OVERHEAD_S

GBYTES = 1e9
LATENCY_S = 1e-6
"""Of each link."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A box."""

    gpus: int
    """Servers of it: dies, where a card has two."""
    card_gbytes_per_s: float
    """Of a network card."""
    per_card: int = 1
    """GPUs on a network card."""
    switch_gbytes_per_s: float | None = None
    """Bandwidth of a GPU's link to the box's switch, unless GPUs are linked directly (`mi250`)."""


KINDS = {
    "A100": Kind(gpus=8, card_gbytes_per_s=25, switch_gbytes_per_s=300),
    "H100": Kind(gpus=8, card_gbytes_per_s=50, switch_gbytes_per_s=450),
    "MI250": Kind(gpus=16, card_gbytes_per_s=25, per_card=2),
}
"""By name: eight GPUs on a switch with a card of 200 or 400 Gbit/s each; and sixteen dies with
direct links, a card of 200 Gbit/s for every two."""
FABRICS = ("spine", "rails", "leaf–spine", "leaf–spine 2:1")
"""All cards on one switch without limits; card i of all boxes on switch i; card i of the boxes of a
pod on leaf i of the pod, and each leaf on all spines, with as much bandwidth up as down or half."""
PER_POD, BOXES_PER_SPINE = 8, 2


def boxes(kind: str, count: int, fabric: str = "spine", *, slow: float = 1.0) -> Topology:
    """Equal boxes joined by their network cards.

    Args:
        kind: one of `KINDS`.
        count: boxes.
        fabric: one of `FABRICS`.
        slow: speed of the first box's first card, relative to that of the others.
    """
    box = KINDS[kind]
    servers = count * box.gpus
    pairs, speeds = _inside(box, count)
    switches = 0 if box.switch_gbytes_per_s is None else count
    cards = servers // box.per_card
    card = servers + switches + np.arange(cards)
    gpu = np.arange(servers)
    rate = np.full(cards, box.card_gbytes_per_s)
    rate[0] *= slow
    outer, joined, joined_speeds, beyond = _fabric(box, count, fabric, servers + switches + cards)
    pairs += [*zip(gpu.tolist(), card[gpu // box.per_card].tolist(), strict=True)]
    speeds += rate[gpu // box.per_card].tolist()
    pairs += [*zip(card.tolist(), outer, strict=True), *joined]
    speeds += [*rate.tolist(), *joined_speeds]
    name = f"{count} boxes of {kind}, {fabric}" + f", a card at {slow:g}" * (slow < 1)
    made = Topology.from_links(
        name,
        servers=servers,
        switches=switches + cards + beyond,
        links=pairs,
        bandwidth_bytes_per_s=np.array(speeds) * GBYTES,
    )
    links = len(made.source)
    return dataclasses.replace(
        made,
        latency_s=np.full(links, LATENCY_S),
        overhead_s=np.full(links, DEVICE_OVERHEAD_S),
    )


def _inside(box: Kind, count: int) -> tuple[list[tuple[int, int]], list[float]]:
    """The links inside all boxes, and their speeds."""
    servers = count * box.gpus
    if box.switch_gbytes_per_s is not None:
        pairs = [(gpu, servers + gpu // box.gpus) for gpu in range(servers)]
        return pairs, [box.switch_gbytes_per_s] * servers
    one = gpu_boxes("mi250")
    once = np.flatnonzero(one.source < one.target)
    pairs = [
        (number * box.gpus + a, number * box.gpus + b)
        for number in range(count)
        for a, b in zip(one.source[once].tolist(), one.target[once].tolist(), strict=True)
    ]
    return pairs, (one.bandwidth_bytes_per_s[once] / GBYTES).tolist() * count


def _fabric(
    box: Kind, count: int, fabric: str, first: int
) -> tuple[list[int], list[tuple[int, int]], list[float], int]:
    """The switch of each card, links between switches with their speeds, and how many there are.

    Args:
        box: the kind.
        count: boxes.
        fabric: one of `FABRICS`.
        first: number of the first of these switches.
    """
    cards = box.gpus // box.per_card
    number = np.arange(count * cards)
    if fabric == "spine":
        return [first] * len(number), [], [], 1
    if fabric == "rails":
        return (first + number % cards).tolist(), [], [], cards
    per_pod = max(1, min(PER_POD, count // 2))
    leaf = number // cards // per_pod * cards + number % cards
    leaves = int(leaf.max()) + 1
    spines = max(1, per_pod // BOXES_PER_SPINE)
    up = box.card_gbytes_per_s * per_pod / spines / (2 if fabric.endswith("2:1") else 1)
    joined = [
        (first + one, first + leaves + spine) for one in range(leaves) for spine in range(spines)
    ]
    return (first + leaf).tolist(), joined, [up] * len(joined), leaves + spines
