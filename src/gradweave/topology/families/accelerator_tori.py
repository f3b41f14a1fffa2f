"""Tori of accelerators: slices of TPU pods, and instances of Trainium2."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np

from gradweave.errors import TopologyError
from gradweave.topology.families.family import integer, spec_name
from gradweave.topology.families.torus import grid_links, grid_positions, grid_sizes
from gradweave.topology.rated import LinkGroup, rated_topology
from gradweave.topology.topology import DEVICE_OVERHEAD_S, Link, Topology

TPU_LINKS = {
    "v4": (3, Link(bandwidth_bytes_per_s=50e9, overhead_s=DEVICE_OVERHEAD_S)),
    "v5e": (2, Link(bandwidth_bytes_per_s=50e9, overhead_s=DEVICE_OVERHEAD_S)),
    "v5p": (3, Link(bandwidth_bytes_per_s=100e9, overhead_s=DEVICE_OVERHEAD_S)),
    "v6e": (2, Link(bandwidth_bytes_per_s=100e9, overhead_s=DEVICE_OVERHEAD_S)),
}
"""By generation: dimensions of the torus, and one inter-chip link: the published bandwidth of a
chip (v5e 1600, v5p 4800, v6e 3200 Gbit/s; v4 six links of 50 GB/s) divided by its links."""

TRN2_LINK = Link(bandwidth_bytes_per_s=128e9, overhead_s=DEVICE_OVERHEAD_S)
"""One NeuronLink-v3 of an instance, per direction: the published 1024 GB/s of a chip are taken to
be those of four links in both directions."""

Wrap = Literal["all", "slice", "twisted"]


def tpu_torus(
    dimensions: Sequence[int],
    generation: str = "v4",
    wrap: Wrap = "all",
    *,
    link: Link | None = None,
) -> Topology:
    """Makes a torus of TPU chips with the link rates of their generation.

    Args:
        dimensions: size of each dimension; at most as many as the generation's torus has.
        generation: ``"v4"`` or ``"v5p"`` (up to three dimensions), ``"v5e"`` or ``"v6e"`` (up to
            two).
        wrap: ``"all"`` dimensions, as in `torus`; ``"slice"``: those that wrap around in a slice
            of this shape, all if all three are multiples of 4 (v4, v5p), else those of size 16
            (v5e, v6e); ``"twisted"``: all, and a step around a dimension of size k also moves k
            along those of size 2k, for k·k·2k and k·2k·2k, k a multiple of 4 (v4, v5p).
        link: properties of every link; as in `TPU_LINKS` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Google Cloud, "TPU v4", "TPU v5p", "TPU v6e" (with v5e) system architecture; Jouppi et
        al., "TPU v4", ISCA 2023, section 2.8; Camarero et al., "Lattice graphs for high-scale
        interconnection topologies", IEEE TPDS 2015; Austin et al., "How to scale your model", 2025.

    >>> tpu_torus((4, 4, 4), generation="v5p")
    Topology('tpu_v5p:4x4x4': 64 servers, 0 switches, 192 links)
    >>> tpu_torus((4, 4, 8), wrap="twisted").name
    'tpu_v4:4x4x8,wrap=twisted'
    """
    if generation not in TPU_LINKS:
        raise TopologyError(
            f"tpu: generation must be one of {', '.join(TPU_LINKS)}, got {generation!r:.40}"
        )
    most, default = TPU_LINKS[generation]
    family = f"tpu_{generation}"
    sizes = grid_sizes(family, dimensions)
    text = "x".join(map(str, sizes))
    if len(sizes) > most:
        raise TopologyError(f"{family}: dimensions must be at most {most} sizes, got {text}")
    wraps, twist = [True] * len(sizes), 0
    if wrap == "slice":
        cubes = len(sizes) == 3 and all(size % 4 == 0 for size in sizes)
        wraps = [cubes if most == 3 else size == 16 for size in sizes]
    elif wrap == "twisted":
        twist = min(sizes)
        if (
            most < 3
            or sorted({size / twist for size in sizes}) != [1, 2]
            or (len(sizes) < 3 or twist % 4)
        ):
            raise TopologyError(
                f"{family}: wrap=twisted needs a v4 or v5p of k·k·2k or k·2k·2k chips with k a "
                f"multiple of 4, such as 4x4x8; got {text}"
            )
    elif wrap != "all":
        raise TopologyError(f"{family}: wrap must be all, slice or twisted, got {wrap!r:.40}")
    body = f"{family}:{text}" + f",wrap={wrap}" * (wrap != "all")
    links = grid_links(body, sizes, wraps, twist)
    return Topology.from_links(
        spec_name(body, link, default),
        servers=math.prod(sizes),
        switches=0,
        links=np.concatenate(links),
        link=link or default,
        positions=grid_positions(sizes, wraps=any(wraps)),
    )


def trn2(instances: int = 1, *, link: Link | None = None) -> Topology:
    """Makes a Trainium2 instance: 16 chips in a 4×4 torus; or an UltraServer of four.

    In an UltraServer the chips at the same place of all instances form a ring, over links of half
    the bandwidth of those inside an instance. Network cards are left out.

    Args:
        instances: 1, or 4 for an UltraServer.
        link: properties of a link inside an instance; `TRN2_LINK` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: AWS Neuron documentation, "Amazon EC2 Trn2 architecture": 1024 GB/s of a chip within an
        instance and 256 GB/s between instances, here divided by 4 and 2 links and 2 directions.

    >>> trn2(instances=4)
    Topology('trn2:instances=4': 64 servers, 0 switches, 192 links)
    """
    instances = integer("trn2", "instances", instances, least=1, most=4)
    if instances not in (1, 4):
        raise TopologyError(f"trn2: instances must be 1, or 4 for an UltraServer, got {instances}")
    sizes = (4, 4) if instances == 1 else (4, 4, 4)
    body = "trn2" if instances == 1 else f"trn2:instances={instances}"
    *between, rows, columns = grid_links(body, sizes, [True] * len(sizes))
    groups = [LinkGroup(np.concatenate([rows, columns]), Fraction(1))]
    return rated_topology(
        spec_name(body, link, TRN2_LINK),
        groups + [LinkGroup(pairs, Fraction(1, 2)) for pairs in between],
        servers=math.prod(sizes),
        switches=0,
        link=link or TRN2_LINK,
        positions=grid_positions(sizes, wraps=True),
    )
