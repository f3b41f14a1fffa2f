"""Reading a million transfers, and verifying two million.

taskset -c 0 python benchmarks/experiments/large_files.py
"""

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record
from benchmarks.timing import timed
from gradweave.schedules import Schedule
from gradweave.schedules.schedule import take_rows

RUNS = 5


def first_transfers(schedule: Schedule, count: int) -> Schedule:
    """The first transfers of a schedule: well-formed, but not a valid schedule."""
    nodes, offsets = take_rows(schedule.route_nodes, schedule.route_offsets, np.arange(count))
    columns = {
        name: getattr(schedule, name)[:count]
        for name in ("round", "piece", "source", "target", "op")
    }
    return schedule.replace(**columns, route_nodes=nodes, route_offsets=offsets)


def sorted_times(work: Any) -> tuple[list[float], Any]:
    """Seconds of each run, ascending, and the last result."""
    results = [timed(work) for _ in range(RUNS)]
    return sorted(round(seconds, 4) for seconds, _ in results), results[-1][1]


def main() -> None:
    parser_of(__doc__).parse_args()
    network = gw.topology.bcube(n=32, k=1)
    schedule = gw.schedulers.Merged("most_loaded", tries=1, swap_passes=0).schedule(network)
    million = first_transfers(schedule, 1_000_000)
    rows: dict[str, Any] = {"transfers": schedule.num_transfers, "servers": network.num_servers}
    with tempfile.TemporaryDirectory() as directory:
        for suffix in (".json", ".json.gz"):
            path = Path(directory) / f"million{suffix}"
            million.save(path)
            rows[f"load_million{suffix}_s"], _ = sorted_times(lambda path=path: gw.load(path))
            rows[f"bytes{suffix}"] = path.stat().st_size
    rows["verify_s"], verdict = sorted_times(lambda: gw.verify(schedule))
    tracemalloc.start()
    gw.verify(schedule)
    rows["verify_peak_memory_mib"] = round(tracemalloc.get_traced_memory()[1] / 2**20)
    tracemalloc.stop()
    assert verdict.valid
    record("large_files", rows=rows)
    print(rows)


if __name__ == "__main__":
    main()
