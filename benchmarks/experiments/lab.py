"""Measured beside predicted time of all-reduces on emulated networks, and bytes on the links.

python benchmarks/experiments/lab.py

Needs root and an otherwise idle machine: each server is a process, and two cores run nine to twelve
of them.
"""

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture
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
            schedules.append((name, gw.solve(topology, objective="rounds").schedule))
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


def link_bytes(one: Measurement) -> dict[str, object]:
    """What the picture shows beside times."""
    data = one.predicted_link_bytes
    return {
        "link_bytes": one.link_bytes.tolist(),
        "predicted_link_bytes": None if data is None else data.tolist(),
    }


def measure(network: str, mbit_per_s: int) -> list[dict[str, Any]]:
    rows = []
    topology = emulated(
        gw.topology.from_spec(network), bandwidth_bytes_per_s=mbit_per_s * 125_000, latency_s=0.0
    )
    with laboratory(topology) as lab:
        for name, schedule in schedules_of(topology):
            for size in SIZES[:1] if name == SLOW else SIZES:
                runs = 3 if name == SLOW else REPETITIONS
                one = lab.measure(name, schedule, size, runs, lambda _: None)
                rows.append(row(network, one))
                if (network, mbit_per_s, size) == (*DRAWN, SIZES[-1]):
                    rows[-1] |= link_bytes(one)
    return rows


def draw(result: dict[str, Any], path: Path) -> None:
    """One of the networks.

    Raises:
        SystemExit: the bytes on its links are not recorded.
    """
    drawn = []
    for row in result["rows"]:
        if (row["network"], row["mbit_per_s"]) != DRAWN or row["name"] == SLOW:
            continue
        if row["gradient_bytes"] == SIZES[-1] and "link_bytes" not in row:
            raise SystemExit("lab.json lacks the bytes on each link: measure again")
        arrays = ("link_bytes", "predicted_link_bytes")
        link = {name: row[name] and np.array(row[name]) for name in arrays if name in row}
        drawn.append(SimpleNamespace(**{"predicted_link_bytes": None} | row | link))
    lab_chart(drawn, f"{DRAWN[0]}, links of {DRAWN[1]} Mbit/s", path)


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(network=NETWORKS, mbit_per_s=MBIT), measure),
        picture=Picture("lab", draw, ("rows",)),
        load_at_start=os.getloadavg()[0],
        repetitions=REPETITIONS,
    )
