"""Open MPI and MPICH on emulated uneven networks, with and without tables of `gradweave ranks`.

python benchmarks/experiments/algorithm_tables.py --mpich VENV

Needs root, as experiments/lab.py, and for MPICH a virtual environment with the packages mpich,
mpi4py and numpy. Five collectives from 8 bytes to 64 MiB on eight hosts, with the library's default
algorithms and with the table that is predicted for the network, in turns. In Open MPI both are
communicators of one program: the table is switched off by MPI_T before the second is made. MPICH
chooses when it starts, so runs alternate.

The load of the last minute is recorded with each network.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.intervals import middle
from benchmarks.lab_mpi import mpi_json
from benchmarks.record import record
from benchmarks.unequal_networks import network
from benchmarks.unfinished import Unfinished
from gradweave.lab.commands import server_commands
from gradweave.lab.network import EmulatedNetwork
from gradweave.ranks.table_files import save_table
from gradweave.ranks.tables import Table, predict_table
from gradweave.simulator.runtime import Costs, Runtime

RATE = 400.0
"""Mbit/s of a host's link: eight processes on two cores keep such links busy."""
SIZES = (8, 8 << 10, 128 << 10, 1 << 20, 8 << 20, 64 << 20)
BUDGET_S = 4.0
"""Seconds for the runs of one collective and size, both contenders together."""
LEAST, MOST = 2, 40
"""Runs of each contender."""
CALL_S = 0.02
"""Calls are repeated within a run until it takes about this long."""
ROUNDS = 2
"""Runs of MPICH with and without the table, each."""
PROCESSORS = 2
SEED = 0

PROGRAM = """
import ctypes, json, sys, time
import numpy as np
from mpi4py import MPI
sizes, budget_s, least, most, call_s, flip = json.loads(sys.argv[1])
world = MPI.COMM_WORLD
contenders = {"table": world.Dup()}
if flip:
    libmpi = ctypes.CDLL("libmpi.so.40")
    number, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    provided = ctypes.c_int()
    libmpi.MPI_T_init_thread(0, ctypes.byref(provided))
    name = b"coll_tuned_use_dynamic_rules"
    assert libmpi.MPI_T_cvar_get_index(name, ctypes.byref(number)) == 0
    where = (number, None, ctypes.byref(handle), ctypes.byref(count))
    assert libmpi.MPI_T_cvar_handle_alloc(*where) == 0
    off = ctypes.c_int(0)
    assert libmpi.MPI_T_cvar_write(handle, ctypes.byref(off)) == 0
    contenders["default"] = world.Dup()
aside = world.Dup()
ranks = world.size

def calls(comm, size):
    part = max(size // ranks, 1)
    whole = np.ones(part * ranks if size >= ranks else size, np.uint8)
    out = np.empty_like(whole)
    floats = np.ones(max(size // 4, 1), np.float32)
    sums = np.empty_like(floats)
    each = max(size // 4 // ranks, 1)
    scattered = np.ones(each * ranks, np.float32)
    mine = np.empty(each, np.float32)
    return {
        "all_reduce": lambda: comm.Allreduce(floats, sums),
        "all_gather": lambda: comm.Allgather(whole[:part], out[: part * ranks]),
        "broadcast": lambda: comm.Bcast(whole),
        "reduce_scatter": lambda: comm.Reduce_scatter(scattered, mine, [each] * ranks),
        "all_to_all": lambda: comm.Alltoall(whole[: part * ranks], out[: part * ranks]),
    }

def run(call, repeats):
    aside.Barrier()
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    return aside.allreduce(time.perf_counter() - begun, op=MPI.MAX) / repeats

rows = []
for size in sizes:
    made = {name: calls(comm, size) for name, comm in contenders.items()}
    for collective in next(iter(made.values())):
        runs = {name: [run(made[name][collective], 1)] for name in made}
        slowest = max(one[0] for one in runs.values())
        repeats, pairs = 1, least - 1
        if slowest < 0.5:  # otherwise the first run counts
            first = {name: run(made[name][collective], 1) for name in made}
            runs = {name: [] for name in made}
            repeats = max(1, int(call_s / max(first.values())))
            pairs = min(max(int(budget_s / (sum(first.values()) * repeats)), least), most)
        for number in range(pairs):
            for name in list(made)[:: 1 if number % 2 else -1]:
                runs[name].append(run(made[name][collective], repeats))
        rows.append({"collective": collective, "bytes": size, "repeats": repeats, "runs": runs})
if world.rank == 0:
    print(json.dumps({"rows": rows}))
"""


def two_racks() -> gw.Topology:
    """Two racks of four hosts, and a trunk of one host's speed."""
    links = [(s, 8 + s // 4, 0.0, RATE) for s in range(8)]
    return network("two racks of 4, 4:1", 8, 2, [*links, (8, 9, 0.0, RATE)])


def slow_host() -> gw.Topology:
    """Eight hosts on a switch, one of them at a quarter of the others' speed."""
    links = [(s, 8, 0.0, RATE if s != 5 else RATE / 4) for s in range(8)]
    return network("star of 8, one host at a quarter", 8, 1, links)


NETWORKS = {"racks": two_racks, "slow": slow_host}


def over_tcp(lab: EmulatedNetwork) -> dict[str, str]:
    """Variables by which MPICH uses TCP, and sleeps when it waits, as Open MPI yields.

    UCX does not accept the lab's interfaces.
    """
    throttle = "MPIR_CVAR_CH4_PROGRESS_THROTTLE"
    return {
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": lab.interface(0),
        throttle: "1",
        f"{throttle}_NO_PROGRESS_COUNT": "64",
    }


def message_cost_s(lab: EmulatedNetwork, library: str, venv: Path | None) -> float:
    """The cost of a message here, from the all-reduce of 8 bytes.

    All processes share two cores, and eight ranks send 24 messages.
    """
    given = [[8], 1.0, LEAST, 100, CALL_S, False]
    where = {} if library == "openmpi" else {"mpich": venv, "environment": over_tcp(lab)}
    rows = mpi_json(lab, range(8), PROGRAM, given, **where)["rows"]
    return float(np.median(rows[0]["runs"]["table"])) * PROCESSORS / 24


def openmpi(lab: EmulatedNetwork, table: Table, size: int) -> list[dict[str, Any]]:
    """Rows with runs of both contenders."""
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder, "rules.conf")
        save_table(table, rules, "openmpi")
        options = ["--mca", "coll_tuned_use_dynamic_rules", "1"]
        options += ["--mca", "coll_tuned_dynamic_rules_filename", str(rules)]
        given = [[size], BUDGET_S, LEAST, MOST, CALL_S, True]
        return mpi_json(lab, range(8), PROGRAM, given, options=options)["rows"]


def mpich(lab: EmulatedNetwork, table: Table, size: int, venv: Path) -> list[dict[str, Any]]:
    """The same; runs with and without the table alternate."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = Path(folder, "selection.json")
        save_table(table, chosen, "mpich", next(venv.glob("lib/libmpi.so.*")))
        variable = {"MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE": str(chosen)}
        given = [[size], BUDGET_S / 2 / ROUNDS, 1, MOST // ROUNDS, CALL_S, False]
        for number in range(2 * ROUNDS):
            name = "default" if number % 2 else "table"
            environment = over_tcp(lab) | (variable if name == "table" else {})
            made = mpi_json(lab, range(8), PROGRAM, given, mpich=venv, environment=environment)[
                "rows"
            ]
            rows = rows or [row | {"runs": {"default": [], "table": []}} for row in made]
            for row, one in zip(rows, made, strict=True):
                row["runs"][name] += one["runs"]["table"]
    return rows


def mpich_version(venv: Path) -> str:
    """The version in its first line of output."""
    command = [str(venv / "bin" / "mpichversion")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return text.split("\n")[0].split()[-1]


def judged(row: dict[str, Any], table: Table, rng: np.random.Generator) -> dict[str, Any]:
    """The row with its ratio: the table's time over the default's, with a 95% interval."""
    runs = {name: np.array(one) for name, one in row["runs"].items()}
    medians = {name: float(np.median(one)) for name, one in runs.items()}
    drawn = {
        name: np.median(rng.choice(one, (2000, len(one))), axis=1) for name, one in runs.items()
    }
    entries = table.entries[row["collective"]]
    used = [entry for entry in entries if entry.from_bytes <= row["bytes"]][-1]
    predicted = [
        one
        for one in table.points
        if (one.collective, one.bytes) == (row["collective"], row["bytes"])
    ]
    return row | {
        "algorithm": used.algorithm,
        "segment_bytes": used.segment_bytes,
        "default": predicted[0].default if predicted else None,
        "predicted_ratio": 1 - predicted[0].gain if predicted and used.algorithm else 1.0,
        "predicted_default_s": predicted[0].default_s if predicted else None,
        "default_s": medians["default"],
        "table_s": medians["table"],
        "ratio": medians["table"] / medians["default"],
        "between": middle(drawn["table"] / drawn["default"]),
    }


def measure(library: str, name: str, venv: Path | None, kept: Unfinished) -> None:
    """One library on one network: adds the rows of sizes that are not kept yet."""
    topology = NETWORKS[name]()
    rng = np.random.default_rng(SEED)
    known = [
        row for row in kept.rows() if (row["library"], row["network"]) == (library, topology.name)
    ]
    sizes = [size for size in SIZES if size not in {row["bytes"] for row in known}]
    if not sizes:
        return
    with EmulatedNetwork(topology) as lab:
        server_commands(lab, [])  # makes the network forward
        cost_s = known[0]["message_s"] if known else message_cost_s(lab, library, venv)
        runtime = Runtime("lab", processors=PROCESSORS, executor=Costs((8.0,), (cost_s,)))
        table = predict_table(topology, library, runtime=runtime)
        about = {"library": library, "network": topology.name, "message_s": cost_s}
        for size in sizes:
            load = os.getloadavg()[0]
            if library == "openmpi":
                rows = openmpi(lab, table, size)
            else:
                assert venv is not None
                rows = mpich(lab, table, size, venv)
            for row in rows:
                made: dict[str, Any] = {**about, "load": load, **judged(row, table, rng)}
                kept.add(made)
                low, high = made["between"]
                print(
                    f"{library:8} {name:6} {made['collective']:15} {size:9} "
                    f"{made['algorithm'] or '-':28} {made['default_s'] * 1e3:10.3f} ms "
                    f"{made['ratio']:.3f} ({low:.3f} to {high:.3f}), predicted "
                    f"{made['predicted_ratio']:.2f}, {len(row['runs']['table'])} runs, "
                    f"load {load:.0f}",
                    flush=True,
                )


def main() -> None:
    """Measures what is not kept yet, and records what is."""
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--mpich", type=Path, help="virtual environment with MPICH")
    parser.add_argument("--only", help="a library and a network, as in openmpi:racks")
    asked = parser.parse_args()
    libraries = ["openmpi"] + ["mpich"] * (asked.mpich is not None)
    every = [(library, name) for library in libraries for name in NETWORKS]
    cases = [one for one in every if asked.only in (None, ":".join(one))]
    kept = Unfinished("algorithm_tables", resume=asked.resume)
    for library, name in cases:
        measure(library, name, asked.mpich, kept)
    record(
        "algorithm_tables",
        libraries=("mpi4py", "openmpi"),
        other_versions={} if asked.mpich is None else {"mpich": mpich_version(asked.mpich)},
        seed=SEED,
        rows=kept.rows(),
    )
    if cases == every:
        kept.end()


if __name__ == "__main__":
    main()
