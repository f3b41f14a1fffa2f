"""Which instances the library has: networks, collectives, models and sizes, by a rule.

The rule was fixed before the instances were solved; none is left out because it stays open.

- Networks are of one kind each, in `NETWORKS`.
- Rounds, where all links are equal or have integer capacities, on every such network: an
  all-reduce, an all-gather and a reduce-scatter. Among them are `DRAWN` clusters of each kind of
  `cluster_networks`, drawn at random.
- Seconds, on the other networks of at most `MOST_TIMED` servers, 1 GB: an all-reduce and an
  all-gather; on those of at most `MOST_PAIRED` an all-to-all; on those in `ROOTED` a broadcast. On
  networks of unequal links the all-reduce alone; on TE-CCL's, whose links between boxes go one way,
  also what TE-CCL solves, an all-gather and an all-to-all.
- Message cost, on the networks in `COSTLY`: an all-reduce of 1 GB and of 1 MB.
- Mixes of demands, in seconds: `MIXES`.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator
from functools import cache

import networkx as nx
import numpy as np

import gradweave as gw
from benchmarks.box_networks import boxes
from benchmarks.cluster_networks import KINDS as CLUSTERS
from benchmarks.cluster_networks import dual_homed, joined, planes, rails, star_of_rings, two_sites
from benchmarks.experiments.te_ccl import dgx2, mesh, ndv2_by_switch  # pyright: ignore[reportMissingImports]
from benchmarks.named_networks import NAMED
from benchmarks.unequal_networks import KINDS, wide_areas
from gradweave.schedules.jobs import Job, mesh_jobs
from gradweave.topology import Topology

GB, MB = 10**9, 10**6
MOST_TIMED, MOST_PAIRED = 36, 16
DRAWN = 3
"""Networks of each kind of cluster, drawn by seeds from 0."""
USUAL_COST_S = 1e-6
"""Of a message, where a network's links have no overhead."""
RELEASE = "2026.11"


def _two_tori() -> Topology:
    grid = nx.grid_2d_graph(4, 4, periodic=True)
    torus = nx.convert_node_labels_to_integers(grid, ordering="sorted")
    return joined("two tori 4x4 joined by one link", torus, 2, 1, nx.path_graph(2))


def _spec(spec: str) -> Callable[[], Topology]:
    return lambda: gw.topology.from_spec(spec)


def machine_of_te_ccl(make: Callable, size: int, name: str) -> Callable[[], Topology]:
    """A machine of TE-CCL's."""
    return lambda: make(size).topology(f"{name}, {size}")


@cache
def _wide_areas() -> list[Topology]:
    return wide_areas()


def _wide(at: int) -> Callable[[], Topology]:
    return lambda: _wide_areas()[at]


def _random(make: Callable[[np.random.Generator], Topology], seed: int) -> Callable[[], Topology]:
    return lambda: make(np.random.default_rng(seed))


def _slug(kind: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")


NETWORKS: dict[str, dict[str, Callable[[], Topology]]] = {
    "table-2": {
        **{f"bcube-{n}-1": _spec(f"bcube:n={n},k=1") for n in (3, 4, 5)},
        **{f"dcell-{n}-1": _spec(f"dcell:n={n},k=1") for n in (4, 5, 6)},
        **{f"jellyfish-{n}": _spec(f"jellyfish:reference=J{n},seed=0") for n in (10, 15, 20)},
    },
    "ring": {f"ring-{n}": _spec(f"ring:{n}") for n in (8, 16)},
    "torus": {
        f"torus-{size}": _spec(f"torus:{size}")
        for size in ("3x3", "4x4", "5x5", "6x6", "4x8", "8x8", "3x3x3", "4x4x4")
    },
    "mesh": {
        f"mesh-{size}": _spec(f"mesh:{size}")
        for size in ("3x3", "4x4", "5x5", "6x6", "4x8", "8x8", "3x3x3")
    }
    | {
        f"joined-rows-{side}": machine_of_te_ccl(mesh, side, "mesh of joined rows")
        for side in (4, 6)
    },
    "hypercube": {f"hypercube-{n}": _spec(f"hypercube:{n}") for n in (3, 4, 5, 6)},
    "complete": {f"complete-{n}": _spec(f"complete:{n}") for n in (4, 8)},
    "switch": {f"star-{n}": _spec(f"star:{n}") for n in (8, 16)},
    "machine": {
        "dgx1v": _spec("dgx1v"),
        "mi250": _spec("mi250"),
        "a100": _spec("a100"),
        "a100-2-boxes": _spec("a100:boxes=2"),
        "a100-2-boxes-2-rails": _spec("a100:boxes=2,rails=2"),
        "a100-4-boxes": _spec("a100:boxes=4"),
        "a100-2-boxes-8-rails": _spec("a100:boxes=2,rails=8"),
        "h100-2-boxes-rails": lambda: boxes("H100", 2, "rails"),
        "mi250-2-boxes": lambda: boxes("MI250", 2),
        "tpu-v4-2x2x4": _spec("tpu_v4:2x2x4"),
        "tpu-v5e-4x4": _spec("tpu_v5e:4x4"),
        "dgx2-1": machine_of_te_ccl(dgx2, 1, "DGX-2, boxes:"),
    },
    "one-way": {
        "dgx2-2": machine_of_te_ccl(dgx2, 2, "DGX-2, boxes:"),
        "ndv2-2": machine_of_te_ccl(ndv2_by_switch, 2, "NDv2, boxes:"),
    },
    "leaf-spine": {
        "leaf-spine-4x4": _spec("leaf_spine:leaves=4,spines=2,servers_per_leaf=4"),
        "leaf-spine-4x4-over-2": _spec(
            "leaf_spine:leaves=4,spines=2,servers_per_leaf=4,oversubscription=2"
        ),
        "leaf-spine-4x8": _spec("leaf_spine:leaves=4,spines=4,servers_per_leaf=8"),
        "leaf-spine-8x4": _spec("leaf_spine:leaves=8,spines=2,servers_per_leaf=4"),
        "fat-tree-4": _spec("fat_tree:k=4"),
        "dragonfly-5": _spec("dragonfly:groups=5,routers_per_group=4,servers_per_router=2"),
        "dragonfly-9": _spec(
            "dragonfly:groups=9,routers_per_group=4,servers_per_router=2,global_links=2"
        ),
    },
    "multi-homed": {
        "planes-17-8": lambda: planes(17, 8),
        "planes-33-4": lambda: planes(33, 4),
        "planes-16-2": lambda: planes(16, 2),
        "dual-homed-2x8": lambda: dual_homed(2, 8, 2, 4),
        "dual-homed-2x12": lambda: dual_homed(2, 12, 2, 6),
        "dual-homed-2x16": lambda: dual_homed(2, 16, 2, 8),
        "dual-homed-4x6": lambda: dual_homed(4, 6, 2, 3),
        "rails-4x8": lambda: rails(4, 8, 4, 8),
    },
    "sites": {
        "star-of-rings-5x5": lambda: star_of_rings(5, 5),
        "two-tori-4x4": _two_tori,
        "two-sites-8": lambda: two_sites(8, 2),
    },
    "wide-area": {
        "ten-cities": _wide(0),
        "geant-2012": _wide(1),
        "abilene": _wide(2),
        "six-cities": _wide(3),
        "capitals-12": _wide(5),
        "ten-cities-fastest": _wide(7),
    },
    "unequal": {
        "two-sites-32": NAMED["two sites"],
        "slow-card": NAMED["a slow card"],
        "slow-port": NAMED["a slow port"],
        **{f"{kind.replace(' ', '-')}-0": _random(make, 0) for kind, make in KINDS.items() if make},
    },
    "cluster": {
        f"{_slug(kind)}-drawn-{seed}": _random(make, seed)
        for kind, make in CLUSTERS.items()
        for seed in range(DRAWN)
    },
}
"""By kind and by a short name: makes the network."""
UNEQUAL = ("wide-area", "unequal", "one-way")
"""Kinds whose links have no common unit: rounds mean nothing there."""
ROOTED = ("bcube-3-1", "torus-4x4", "hypercube-3", "dgx1v", "a100", "leaf-spine-4x4", "star-8")
COSTLY = (
    *("bcube-3-1", "ring-8", "torus-4x4", "mesh-4x4", "hypercube-4", "complete-8", "star-8"),
    *("dgx1v", "a100", "a100-2-boxes", "leaf-spine-4x4"),
)


@dataclasses.dataclass(frozen=True)
class Question:
    """One instance, before anything is known of it."""

    id: str
    kind: str
    collective: str
    model: str
    bytes: int | None
    make: Callable[[], Topology]
    servers: int
    jobs: Callable[[Topology], list[Job]] | None = None
    """What is asked, where it is no collective among all servers."""

    def topology(self) -> Topology:
        """The network, where messages cost nothing unless the model says so."""
        made = self.make()
        if self.model == "rounds" or (self.model == "message_cost" and made.overhead_s.any()):
            return made
        cost = USUAL_COST_S if self.model == "message_cost" else 0.0
        return dataclasses.replace(made, overhead_s=np.full_like(made.overhead_s, cost))


def _jobs_of(name: str) -> Callable[[Topology], list[Job]]:
    def jobs(topology: Topology) -> list[Job]:
        root = int(topology.servers[0]) if name == "broadcast" else None
        return [Job(name, GB, root=root)]

    return jobs


def _mesh(rows: int, columns: int, down: str, along: str) -> Callable[[Topology], list[Job]]:
    def jobs(topology: Topology) -> list[Job]:
        axes = {"dp": rows, "tp": columns}
        return mesh_jobs(topology, axes, {"dp": (down, GB), "tp": (along, GB)})

    return jobs


MIXES: dict[str, tuple[str, Callable[[Topology], list[Job]]]] = {
    "rows-and-columns": ("torus-4x4", _mesh(4, 4, "all_reduce", "all_reduce")),
    "gradients-and-experts": ("torus-4x4", _mesh(4, 4, "all_reduce", "all_to_all")),
    "tensor-and-data": ("a100-2-boxes", _mesh(2, 8, "all_reduce", "all_reduce")),
    "gathers-and-experts": ("a100-2-boxes", _mesh(2, 8, "all_gather", "all_to_all")),
    "halves": ("dgx1v", _mesh(2, 4, "reduce_scatter", "all_gather")),
    "both-levels": ("leaf-spine-4x4", _mesh(4, 4, "all_reduce", "all_gather")),
}
"""By name: a network, and the jobs."""


def questions() -> Iterator[Question]:
    """All of them, by the rule."""
    for kind, networks in NETWORKS.items():
        for name, make in networks.items():
            yield from _of_network(kind, name, make)
    made = {name: (kind, make) for kind, some in NETWORKS.items() for name, make in some.items()}
    for mix, (name, jobs) in MIXES.items():
        kind, make = made[name]
        servers = make().num_servers
        yield Question(f"{name}.mix.{mix}.seconds", kind, mix, "seconds", None, make, servers, jobs)


def _of_network(kind: str, name: str, make: Callable[[], Topology]) -> Iterator[Question]:
    servers = make().num_servers
    if kind not in UNEQUAL:
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            yield Question(
                f"{name}.{collective}.rounds", kind, collective, "rounds", None, make, servers
            )
    if servers <= MOST_TIMED and kind != "cluster":
        gathers = kind not in UNEQUAL or kind == "one-way"
        for collective in ("all_reduce", "all_gather") if gathers else ("all_reduce",):
            made = f"{name}.{collective}.seconds.1gb"
            yield Question(made, kind, collective, "seconds", GB, make, servers)
    few = kind not in (*UNEQUAL, "cluster") and servers <= MOST_PAIRED
    paired = ["all_to_all"] * (few or kind == "one-way")
    for collective in [*paired, *["broadcast"] * (name in ROOTED)]:
        made = f"{name}.{collective}.seconds.1gb"
        yield Question(made, kind, collective, "seconds", GB, make, servers, _jobs_of(collective))
    for size, text in ((GB, "1gb"), (MB, "1mb")) if name in COSTLY else ():
        made = f"{name}.all_reduce.message_cost.{text}"
        yield Question(made, kind, "all_reduce", "message_cost", size, make, servers)
