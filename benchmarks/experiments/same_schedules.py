"""60 networks, every strategy that takes them: are schedules the same, bit for bit, as recorded?

    python benchmarks/experiments/same_schedules.py             records them
    python benchmarks/experiments/same_schedules.py --strategies grown      records these anew
    python benchmarks/experiments/same_schedules.py --check     exits with 1 where one differs
    python benchmarks/experiments/same_schedules.py --check --strategies grown,packed --networks 10

For changes that shall change no schedule. No strategy has a time limit, so that a seed decides
everything; `solve` stands for the front door, with its defaults. A schedule is known by a digest of
its columns. Beside it processor seconds, which `--check` compares in sum by strategy: they are of
a busy machine unless it is idle.
"""

import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from cluster_networks import cluster_network
from command_line import parser_of
from random_networks import random_network, well_connected_network
from record import load, record, recorded
from unequal_networks import KINDS, wide_areas

import gradweave as gw
from gradweave.errors import GradweaveError
from gradweave.schedule.schedule import COLUMNS
from gradweave.schedulers.spec import from_spec, split_specs
from gradweave.topology.spec import as_topology

FAMILIES = (
    "ring:6",
    "ring:12",
    "star:9",
    "torus:3x4",
    "torus:3x3x3",
    "hypercube:4",
    "complete:8",
    "bcube:n=4,k=1",
    "dcell:n=4,k=1",
    "fat_tree:k=4",
    "dgx1v",
    "a100:boxes=2",
)
MOST_SERVERS = {
    "exact:effort=3": 9,
    "packed:gradient_bytes=1e7,pieces=16": 16,
    "solve": 40,
    "solve for seconds": 9,
}
"""Where a strategy takes longer on larger networks than this set is worth."""
STRATEGIES = (
    "symmetric",
    "grown:restarts=3",
    "timed:restarts=2",
    "timed:restarts=2,gradient_bytes=1e8",
    "merged:tries=3",
    "merged:tries=2,rule=random,overlap=true",
    "learned:samples=2",
    "learned:samples=2,policy=trained",
    "learned:samples=2,repair=false,trees=fixed",
    "planned:gradient_bytes=1e8",
    "planned:plan=even",
    "packed:gradient_bytes=1e7,pieces=16",
    "exact:effort=3",
    "ring",
    "ring:order=hamiltonian,directions=2",
    "halving_doubling",
    "recursive_doubling",
    "binomial",
    "parameter_server",
    "central_parameter_server",
    "solve",
    "solve for seconds",
)
SEED = 7
SIZE = 1e8
"""Bytes of a gradient, where `solve` makes seconds small."""


def networks() -> Iterator[gw.Topology]:
    """The set: 12 of families, 12 random, 12 as clusters have them, 24 whose links differ."""
    yield from map(as_topology, FAMILIES)
    for seed in range(8):
        yield random_network(seed, unlike_directions=seed % 2 == 1)
    yield from map(well_connected_network, range(4))
    for seed in range(12):
        yield cluster_network(seed)[1]
    for number in range(4):
        for make in KINDS.values():
            rng = np.random.default_rng([2040, number])
            yield wide_areas()[number] if make is None else make(rng)


def schedule_of(strategy: str, network: gw.Topology) -> gw.Schedule:
    if strategy == "solve":
        return gw.solve(network, seed=SEED).schedule
    if strategy == "solve for seconds":
        return gw.solve(network, objective="seconds", gradient_bytes=SIZE, seed=SEED).schedule
    return from_spec(strategy).schedule(network, seed=SEED)


def digest(schedule: gw.Schedule) -> str:
    """Of the columns, in one type, so that how they are kept does not count."""
    sha = hashlib.sha256()
    for name in (*COLUMNS, "shares"):
        column = getattr(schedule, name)
        sha.update(b"" if column is None else np.asarray(column).astype(np.int64).tobytes())
    return sha.hexdigest()[:20]


def measure(place: int, strategy: str, network: gw.Topology) -> dict[str, Any]:
    began = time.process_time()
    try:
        made = digest(schedule_of(strategy, network))
    except GradweaveError as error:
        made = type(error).__name__
    seconds = round(time.process_time() - began, 3)
    return {"place": place, "strategy": strategy, "schedule": made, "seconds": seconds}


def measured(strategies: Sequence[str], chosen: Sequence[gw.Topology]) -> Iterator[dict[str, Any]]:
    """One strategy after the other, each compiled on a network that does not count."""
    for strategy in strategies:
        most = MOST_SERVERS.get(strategy, 1 << 30)
        measure(-1, strategy, as_topology("ring:4"))
        rows = [
            measure(place, strategy, network)
            for place, network in enumerate(chosen)
            if network.num_servers <= most
        ]
        spent = sum(row["seconds"] for row in rows)
        print(f"{strategy}: {len(rows)} networks, {spent:.1f} s", flush=True)
        yield from rows


def differences(strategies: Sequence[str], chosen: Sequence[gw.Topology]) -> int:
    """Compares with what is recorded; says what differs, and seconds by strategy."""
    before = {(row["place"], row["strategy"]): row for row in load("same_schedules")["rows"]}
    now = list(measured(strategies, chosen))
    different = 0
    for row in now:
        old = before.get((row["place"], row["strategy"]))
        if old is None or old["schedule"] != row["schedule"]:
            different += 1
            was = "not recorded" if old is None else old["schedule"]
            where = f"{row['strategy']} on {chosen[row['place']].name}"
            print(f"DIFFERS: {where}: {row['schedule']}, was {was}")
    for strategy in strategies:
        rows = [row for row in now if row["strategy"] == strategy]
        old = [
            before[key]["seconds"] for row in rows if (key := (row["place"], strategy)) in before
        ]
        print(f"{strategy}: {sum(row['seconds'] for row in rows):.2f} s, was {sum(old):.2f}")
    print(f"{different} of {len(now)} differ")
    return different


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is recorded")
    parser.add_argument(
        "--strategies", default=",".join(STRATEGIES), help="only these, by how their names begin"
    )
    parser.add_argument("--networks", type=int, default=60, help="only the first ones")
    asked = parser.parse_args()
    wanted = tuple(split_specs(asked.strategies))
    strategies = [one for one in STRATEGIES if one.startswith(wanted)]
    chosen = list(networks())[: asked.networks]
    if asked.check:
        sys.exit(differences(strategies, chosen) > 0)
    rows = {(row["place"], row["strategy"]): row for row in measured(strategies, chosen)}
    known = recorded("same_schedules", ["rows"])[0].get("rows", [])
    kept = [row for row in known if (row["place"], row["strategy"]) not in rows]
    order = {strategy: place for place, strategy in enumerate(STRATEGIES)}
    both = [row for row in [*kept, *rows.values()] if row["strategy"] in order]
    both.sort(key=lambda row: (order[row["strategy"]], row["place"]))
    record("same_schedules", seeds=[SEED], rows=both)


if __name__ == "__main__":
    main()
