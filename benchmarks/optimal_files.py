"""Files that claims of optimality rest on: of the library, and archives of many small ones.

An archive, claims/optimal/NAME.tar.xz, has a schedule's file for each network of an experiment that
is said to be scheduled in the fewest rounds, with the certificate that there are none of fewer.
"""

import gzip
import io
import json
import re
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradweave as gw
import gradweave_check as checker
from benchmarks.cluster_networks import cluster_network, named_networks
from benchmarks.random_networks import random_network, well_connected_network
from gradweave.bounds.refutations import certify_refutation
from gradweave.bounds.rounds.fixed_trees import certify_fixed_trees
from gradweave.common.atomic import atomic_write
from gradweave.schedulers import Merged
from gradweave.schedulers.exact.exact import Exact
from gradweave.schedules.file import to_bytes
from gradweave.schedules.flow_tree import FlowTrees

BENCHMARKS = Path(__file__).parent
CLAIMS = BENCHMARKS / "claims" / "optimality.toml"
ARCHIVES = BENCHMARKS / "claims" / "optimal"
LIBRARY = BENCHMARKS / "library" / "schedules"

Made = Callable[[], gw.Schedule]
"""What makes a schedule, with its certificate."""


def claims() -> list[dict[str, Any]]:
    """Those of claims/optimality.toml: a page, what it says, and on which files that rests."""
    return tomllib.loads(CLAIMS.read_text())["claim"]


def contents(claim: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of each file that a claim rests on."""
    for name in claim.get("fewest", ()):
        yield name, json.loads(gzip.decompress((LIBRARY / f"{name}.json.gz").read_bytes()))
    if "archive" in claim:
        with tarfile.open(ARCHIVES / f"{claim['archive']}.tar.xz") as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None, "an archive has files alone"
                yield member.name.removesuffix(".json"), json.loads(file.read())


def optimal(content: dict[str, Any]) -> int | None:
    """The rounds of a schedule's file that the first checker finds valid, and proved the fewest.

    Args:
        content: of the file; of one whose trees are given, among schedules along these.
    """
    found = checker.check(content)
    near = re.compile(r"takes (\d+) rounds: optimal in rounds( among such schedules)?$")
    proved = [near.search(text) for _, _, text in found]
    if not all(good for good, *_ in found) or not any(proved):
        return None
    return next(int(one[1]) for one in proved if one is not None)


def write_archive(name: str) -> int:
    """Makes all schedules of an archive.

    Args:
        name: of `MAKERS`.

    Returns:
        How many there are: those that meet their bound.
    """
    packed, count = io.BytesIO(), 0
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as archive:
        for stem, made in MAKERS[name]().items():
            schedule = made()
            if schedule.rounds != _proved(schedule):
                print(f"{name}: {stem}: {schedule.rounds} rounds, not proved the fewest")
                continue
            content = to_bytes(schedule)
            member = tarfile.TarInfo(f"{stem}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
            count += 1
    ARCHIVES.mkdir(exist_ok=True)
    atomic_write(ARCHIVES / f"{name}.tar.xz", packed.getvalue())
    return count


def _proved(schedule: gw.Schedule) -> int:
    """Rounds that the certificates prove to be the fewest."""
    found = gw.bounds.certificates_in(schedule)
    known = (int(one.least) for one, limits in found if not isinstance(one, str) and not limits)
    return max(known, default=0)


def _solved(network: gw.Topology) -> Made:
    return lambda: gw.solve(network, objective="rounds", seed=0).schedule


def _clusters() -> dict[str, Made]:
    return {f"{seed:03}": _solved(cluster_network(seed)[1]) for seed in range(200)}


def _named() -> dict[str, Made]:
    networks = enumerate(network for network, _ in named_networks().values())
    return {f"{number:02}": _solved(network) for number, network in networks}


def _random() -> dict[str, Made]:
    found = {}
    for seed in range(100):
        network = random_network(seed, unlike_directions=seed % 5 == 4)
        found[f"random-{seed:02}"] = _solved(network)
        found[f"well-connected-{seed:02}"] = _solved(well_connected_network(seed))
    return dict(sorted(found.items()))


def _jellyfish() -> dict[str, Made]:
    """The 20 graphs of each size, of which Table 2 has means."""
    return {
        f"J{size}-{seed:02}": _solved(
            gw.topology.from_spec(f"jellyfish:reference=J{size},seed={seed}")
        )
        for size in (10, 15, 20)
        for seed in range(20)
    }


FIXED = (
    *(f"bcube:n={n},k=1" for n in (3, 4, 5)),
    *(f"dcell:n={n},k=1" for n in (3, 4, 5, 6)),
    *(f"jellyfish:reference=J{size},seed=0" for size in (10, 15, 20)),
)
SHORTEST = (
    *(f"bcube:n={n},k=1" for n in (3, 4, 5)),
    "dcell:n=3,k=1",
    *(f"jellyfish:reference=J{size},seed=0" for size in (10, 15)),
)


def _exact() -> dict[str, Made]:
    """Rows of exact_proofs that the library lacks."""
    found = {f"dgx1v-{n}-pieces": _of_exact("dgx1v", pieces_per_server=n) for n in (2, 6)}
    found["dcell-n3-k1"] = _of_exact("dcell:n=3,k=1")
    for spec in FIXED:
        found[f"{_stem(spec)}-fixed"] = _along_fixed_trees(spec)
    for spec in SHORTEST:
        found[f"{_stem(spec)}-shortest"] = _of_exact(spec, trees="shortest")
    found["dcell-n4-k1-shortest"] = _refuted
    return found


def _stem(spec: str) -> str:
    return spec.replace(":", "-").replace("=", "").replace(",", "-")


def _of_exact(spec: str, **options: Any) -> Made:
    def made() -> gw.Schedule:
        scheduler = Exact(**options)
        schedule = scheduler.schedule(gw.topology.from_spec(spec), collective="all_gather", seed=0)
        return gw.bounds.with_certificates(schedule)

    return made


def _along_fixed_trees(spec: str) -> Made:
    """A schedule along the pinned trees, and that no other order of them is shorter."""

    def made() -> gw.Schedule:
        network = gw.topology.from_spec(spec)
        schedule = Exact(trees="fixed").schedule(network, collective="all_gather", seed=0)
        proved = certify_fixed_trees(FlowTrees.shortest_path(network), "all_gather")
        assert proved is not None, "the busiest link of these trees bounds their rounds"
        return schedule.replace(certificates=(dict(proved.certificate),))

    return made


def _refuted() -> gw.Schedule:
    """Of shortest paths on DCell(4,1), 11 rounds are refuted, and fixed trees take 12."""
    network = gw.topology.from_spec("dcell:n=4,k=1")
    kept = BENCHMARKS / "refutations" / "dcell-n4-k1-shortest-11.json"
    refuted = json.loads(kept.read_text())["refutation"]
    proved = certify_refutation(network, "all_gather", refuted)
    schedule = Merged().schedule(network, collective="all_gather", seed=0)
    return schedule.replace(certificates=(dict(proved.certificate),))


MAKERS: dict[str, Callable[[], dict[str, Made]]] = {
    "exact_proofs": _exact,
    "jellyfish": _jellyfish,
    "named_clusters": _named,
    "random_networks": _random,
    "clusters": _clusters,
}
"""What is in each archive, by the names of the files."""
