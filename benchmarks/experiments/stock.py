"""An all-reduce of DDP's bucket on three networks, by what people run today and by Gradweave.

python benchmarks/experiments/stock.py

Links are emulated at 1/500 of their bandwidth and carry a tenth of the bucket, which takes 50 times
as long as on the network itself; milliseconds are those measured, divided by 50. At such speeds
latencies and the cost of messages on this machine count for little, as they do for 25 MB at 10
Gbit/s. Runs of all contenders take turns. Needs root.
"""

import os
import statistics
from pathlib import Path
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture, figure_with
from gradweave.lab.measure import emulated, laboratory

BUCKET_BYTES = 25_000_000
"""PyTorch's `bucket_cap_mb` is 25 by default."""
SLOWER, SMALLER = 500, 10
"""Of the emulation: bandwidths and the bucket."""
TURNS = 5
NETWORKS = {
    "four_hosts": "4 hosts cabled to each other",
    "five_hosts": "5 hosts, one with a 1 Gbit/s NIC",
    "two_sites": "2 sites of 4 hosts, 1 Gbit/s line",
    "two_racks": "2 racks of 4 hosts, 10 Gbit/s trunk",
}
FOLDER = Path(__file__).parents[2] / "examples" / "networks"
CONTENDERS = {
    "gloo": "gloo's all-reduce",
    "ring": "ring, as in NCCL",
    "double_tree": "double tree, as in NCCL",
    "Gradweave": "Gradweave",
}
COLOURS = ("#c9c4b8", "#a9b1c2", "#7f8aa6", "#3d5a9e")


def measure(network: str) -> list[dict[str, Any]]:
    topology = gw.topology.read(FOLDER / f"{network}.edges")
    slowest = float(topology.bandwidth_bytes_per_s.min()) / SLOWER
    small = emulated(topology, bandwidth_bytes_per_s=slowest)
    size = BUCKET_BYTES // SMALLER
    found = gw.solve(
        topology,
        objective="seconds",
        gradient_bytes=BUCKET_BYTES,
        runtime="gloo",
        time_limit=20,
    )
    assert found.runtime is not None and found.timing is not None
    own = found.runtime.own_chosen  # then gloo's all-reduce is the plan
    schedules = {
        "gloo": None,
        "ring": gw.schedulers.Ring().schedule(small),
        "double_tree": gw.schedulers.DoubleTree().schedule(small),
        "Gradweave": None if own else found.schedule.replace(topology=small),
    }
    runs: dict[str, list[float]] = {contender: [] for contender in schedules}
    with laboratory(small) as lab:
        for _ in range(TURNS):
            for contender, schedule in schedules.items():
                one = lab.measure(contender, schedule, size, 1, lambda _: None)
                assert one.correct, contender
                runs[contender] += [SMALLER / SLOWER * time for time in one.runs_s]
    return [
        {
            "contender": contender,
            "plan": ("gloo's" if own else found.scheduler.name) * (contender == "Gradweave"),
            "servers": topology.num_servers,
            "runs_s": times,
            "measured_s": statistics.median(times),
            "bound_s": found.timing.bound.seconds,
            "predicted_s": found.timing.seconds,
            "bound_holds_for": found.timing.bound.holds_for,
        }
        for contender, times in runs.items()
    ]


def draw(result: dict[str, Any], path: Path) -> None:
    """A panel for each network: measured milliseconds, and the lower bound."""
    rows = result["rows"]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure, panels = figure_with((11.0, 2.5), 1, len(networks))
    for panel, network in zip(panels, networks, strict=True):
        here = [row for row in rows if row["network"] == network]
        times = [1e3 * row["measured_s"] for row in here]
        bars = panel.barh(range(len(here)), times, color=COLOURS, height=0.7)
        panel.bar_label(bars, [f"{time:.0f} ms" for time in times], padding=3, fontsize=8)
        panel.set_yticks(range(len(here)))
        names = [CONTENDERS[row["contender"]] for row in here]
        panel.set_yticklabels(names if panel is panels[0] else [""] * len(here), fontsize=8)
        panel.axvline(1e3 * here[0]["bound_s"], color="#2c7a57", linewidth=1, linestyle="--")
        panel.set_title(NETWORKS[network], fontsize=9)
        panel.set_xlim(0, max(times) * 1.25)
        panel.invert_yaxis()
        panel.tick_params(axis="x", labelsize=7)
        panel.tick_params(axis="y", length=0)
    figure.savefig(path)


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(network=NETWORKS), measure),
        picture=Picture("stock", draw, ("rows",)),
        load_at_start=os.getloadavg()[0],
        turns=TURNS,
        bucket_bytes=BUCKET_BYTES,
    )
