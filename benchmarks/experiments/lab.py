"""Measured beside predicted time of all-reduces on emulated networks, and bytes on the links.

python benchmarks/experiments/lab.py

Needs root and an otherwise idle machine: each server is a process, and two cores run nine to twelve
of them.
"""

import dataclasses
import itertools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from record import RESULTS, record

import gradweave as gw
from gradweave.lab.measure import Measurement, emulated, laboratory
from gradweave.report.lab_chart import lab_chart
from gradweave.schedulers.spec import from_spec

NETWORKS = ("bcube:n=3,k=1", "dcell:n=3,k=1", "jellyfish:reference=J10")
MBIT = (50, 100)
SIZES = (1_000_000, 4_000_000, 8_000_000)
DRAWN = (NETWORKS[0], MBIT[1])
STRATEGIES = ("portfolio", "ring", "parameter_server", "central_parameter_server", "gloo")
SLOW = "central_parameter_server"
REPETITIONS = 5


def schedules_of(topology: gw.Topology) -> list[tuple[str, gw.Schedule | None]]:
    schedules: list[tuple[str, gw.Schedule | None]] = []
    for name in STRATEGIES:
        if name == "gloo":
            schedules.append((name, None))
        elif name == "portfolio":
            schedules.append((name, gw.solve(topology).schedule))
        else:
            schedules.append((name, from_spec(name).schedule(topology)))
    return schedules


def row(network: str, one: Measurement) -> dict[str, object]:
    fields = {
        field.name: getattr(one, field.name)
        for field in dataclasses.fields(one)
        if field.name not in ("schedule", "link_bytes", "predicted_link_bytes")
    }
    data = one.predicted_link_bytes
    return {
        "network": network,
        **fields,
        "rounds": None if one.schedule is None else one.schedule.rounds,
        "measured_s": one.measured_s,
        "ratio": one.ratio,
        "bytes_counted": float(one.link_bytes.sum()),
        "bytes_of_data": None if data is None else float(data.sum()),
        "most_over_data_on_a_link": None
        if data is None
        else float(np.max(one.link_bytes[data > 0] / data[data > 0])),
    }


def main() -> None:
    rows, drawn = [], []
    load = os.getloadavg()[0]
    for network, mbit in itertools.product(NETWORKS, MBIT):
        topology = emulated(
            gw.topology.from_spec(network), bandwidth_bytes_per_s=mbit * 125_000, latency_s=0.0
        )
        with laboratory(topology) as lab:
            for name, schedule in schedules_of(topology):
                for size in SIZES[:1] if name == SLOW else SIZES:
                    runs = 3 if name == SLOW else REPETITIONS
                    one = lab.measure(name, schedule, size, runs, lambda _: None)
                    rows.append(row(network, one) | {"mbit_per_s": mbit})
                    if (network, mbit) == DRAWN and name != SLOW:
                        drawn.append(one)
                    ratio = "" if one.ratio is None else f"×{one.ratio:.3f}"
                    print(network, mbit, name, size, f"{one.measured_s:.4f} s", ratio, flush=True)
    lab_chart(drawn, f"{DRAWN[0]}, links of {DRAWN[1]} Mbit/s", RESULTS / "lab.png")
    record(
        "lab",
        load_at_start=load,
        repetitions=REPETITIONS,
        rows=rows,
    )


if __name__ == "__main__":
    main()
