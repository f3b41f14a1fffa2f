"""Measured beside predicted time of all-reduces on emulated wide-area networks.

python benchmarks/experiments/lab_delays.py

Needs root and an otherwise idle machine, as experiments/lab.py; latencies of 5 to 100 ms are those
of a delay line where the kernel has no netem.
"""

import os
from collections.abc import Iterable, Iterator, Mapping

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.experiments.lab import row
from benchmarks.record import record
from benchmarks.unequal_networks import network
from gradweave.lab.emulation import Emulation
from gradweave.lab.measure import laboratory
from gradweave.schedulers.spec import from_spec

MB = 1_000_000
SIZES = (MB, 10 * MB, 100 * MB)
REPETITIONS = {MB: 3, 10 * MB: 3, 100 * MB: 1}
STRATEGIES = ("ring", "grown", "binomial", "recursive_doubling")
CHOSEN = "least seconds"
"""By `solve` with the objective seconds, for the size."""


def two_sites() -> gw.Topology:
    """Four servers behind a switch, twice; the switches 20 ms apart."""
    local = [(server, 8 + server // 4, 0.0, 100.0) for server in range(8)]
    return network("two sites, 20 ms", 8, 2, [*local, (8, 9, 20.0, 100.0)])


def six_cities() -> gw.Topology:
    """A ring of six servers, 5 to 50 ms from the next."""
    gaps = (5.0, 10.0, 20.0, 30.0, 40.0, 50.0)
    return network(
        "ring of six cities, 5–50 ms",
        6,
        0,
        [(i, (i + 1) % 6, gap, 50.0) for i, gap in enumerate(gaps)],
    )


def star() -> gw.Topology:
    """Six servers, each 10 ms from one switch."""
    return network("star of six, 10 ms", 6, 1, [(server, 6, 10.0, 50.0) for server in range(6)])


def continents() -> gw.Topology:
    """Two continents 100 ms apart, of two sites 5 ms from their exchange, of two servers."""
    local = [(server, 8 + server // 2, 0.0, 50.0) for server in range(8)]
    regional = [(8 + site, 12 + site // 2, 5.0, 50.0) for site in range(4)]
    return network("two continents, 100 ms", 8, 6, [*local, *regional, (12, 13, 100.0, 50.0)])


NETWORKS = (two_sites, six_cities, star, continents)


def contenders(topology: gw.Topology) -> Iterator[tuple[str, gw.Schedule, int]]:
    """Names, schedules and sizes."""
    for name in STRATEGIES:
        schedule = from_spec(name).schedule(topology)
        for size in SIZES[:-1]:  # the largest would take minutes a run
            yield name, schedule, size
    for size in SIZES:
        solution = gw.solve(topology, objective="seconds", gradient_bytes=size)
        yield CHOSEN, solution.schedule, size


def emulated_row(name: str, found: Emulation) -> dict[str, object]:
    """What was asked for and what was measured of the links before the schedules ran."""
    return {
        "network": name,
        "delays": found.delays,
        "window_bytes": found.window_bytes,
        "asked_round_trip_s": found.asked_round_trip_s.tolist(),
        "round_trip_s": found.round_trip_s.tolist(),
        "asked_bytes_per_s": found.asked_bytes_per_s.tolist(),
        "together_bytes_per_s": found.together_bytes_per_s.tolist(),
    }


def measured(
    topology: gw.Topology,
    contenders: Iterable[tuple[str, gw.Schedule | None, int]],
    repetitions: Mapping[int, int],
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """What was emulated, and a row for each contender: name, schedule (None: gloo's own), size."""
    rows = []
    with laboratory(topology) as lab:
        emulated = emulated_row(topology.name, lab.emulation)
        for name, schedule, size in contenders:
            one = lab.measure(name, schedule, size, repetitions[size], lambda _: None)
            pieces = None if schedule is None else schedule.pieces
            rows.append(row(topology.name, one) | {"pieces": pieces})
            beside = ""
            if one.ratio is not None:
                beside = f", predicted {one.predicted_s:.3f}, ×{one.ratio:.3f}"
            print(
                f"{topology.name}, {name}, {size / MB:g} MB: {one.measured_s:.3f} s{beside}",
                flush=True,
            )
    return emulated, rows


def main() -> None:
    """Measures and records."""
    parser_of(__doc__).parse_args()
    rows, emulated, load = [], [], os.getloadavg()[0]
    for make in NETWORKS:
        topology = make()
        found, own = measured(topology, list(contenders(topology)), REPETITIONS)
        emulated.append(found)
        rows += own
    record("lab_delays", load_at_start=load, emulated=emulated, rows=rows)


if __name__ == "__main__":
    main()
