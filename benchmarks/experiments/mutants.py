"""Do a room's own tests notice faults in it? Small ones are injected, one at a time.

    make mutants                                     300 of them over all rooms, recorded
    python benchmarks/experiments/mutants.py --room saddle --count 20 --seed 3
    python benchmarks/experiments/mutants.py --room schedulers/flows --count 20 --seed 3
    python benchmarks/experiments/mutants.py --line src/gradweave/saddle/method.py:108
    python benchmarks/experiments/mutants.py --edit 'src/gradweave/saddle/method.py:108: 2 * => 3 *'

Nothing in the tree is changed: the tests run on a copy, quick ones first, up to the first that
fails. Each fault that none notices is recorded with the reason that `mutant_survivors.toml` gives.
"""

import argparse
import math
import multiprocessing
import os
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.mutant_edits import Edit, edits_of, files, sample
from benchmarks.mutant_trials import Trials, trials
from benchmarks.record import record, recorded
from benchmarks.unfinished import Unfinished
from gradweave.processes.watch import Watch
from tests.costs import recorded as recorded_costs

ROOT = Path(__file__).parents[2]
SURVIVORS = ROOT / "benchmarks" / "mutant_survivors.toml"
SOURCE = "src/gradweave"

ROOMS = {
    name: [f"tests/{name}"]
    for name in (
        "aggregate automata bounds cli environment execute export lab learning library marl "
        "placement probe processes ranks report saddle schedulers schedules simulator topology "
        "torch training verifier"
    ).split()
}
"""The tests of each folder of the package."""
ROOMS["schedulers"].append("tests/conformance")
ROOMS["torch"] = [
    f"tests/{name}"
    for name in (
        "execute/test_torch_backend.py execute/test_torch_bad_plans.py execute/test_threads.py "
        "execute/test_torch_waiting.py cli/test_cli_plan.py cli/test_cli_watch.py"
    ).split()
]
PARTS = {
    "aggregate/sequences.py": ["tests/aggregate/test_sequences.py"],
    "aggregate/torch_gossip.py": [
        "tests/aggregate/test_torch_gossip.py",
        "tests/aggregate/test_torch_steps.py",
    ],
    "marl/sweep.py": ["tests/marl/test_marl_sweep.py"],
    **{
        f"schedulers/{part}": [f"tests/schedulers/{part}"]
        for part in (
            "exact flows greedy grid improving kernels ordering packing repairing solving "
            "textbook trees".split()
        )
    },
    # The files next to the folders test the whole search.
    "schedulers/solving": ["tests/schedulers/solving"]
    + [
        f"tests/schedulers/test_schedulers_{name}.py"
        for name in "few_rounds objective portfolio runtime solve spread time_limit".split()
    ],
}
"""Parts of rooms that are drawn from by themselves, and their tests."""
WITH_JAX = {"aggregate", "environment", "learning", "marl", "saddle", "training"}
"""Rooms whose tests begin sooner where JAX is imported before the fork."""

Row = dict[str, Any]


def options() -> argparse.Namespace:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument(
        "--room", action="append", choices=sorted(ROOMS | PARTS), help="(default: all)"
    )
    parser.add_argument("--count", type=int, default=300, help="of faults over all these rooms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--line", action="append", default=[], help="FILE:LINE: all faults there")
    parser.add_argument("--edit", action="append", default=[], help="'FILE:LINE: OLD => NEW'")
    parser.add_argument("--tests", action="append", help="in place of the room's own")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a run, at least")
    parser.add_argument("--record", action="store_true", help="also where rooms are named")
    parser.add_argument("--jobs", type=int, default=2, help="rooms side by side")
    parser.add_argument(
        "--as-far", action="store_true", help="record what an earlier run has, and try no more"
    )
    return parser.parse_args()


def room_of(path: str) -> str:
    name = Path(path).relative_to(SOURCE).parts[0]
    if name not in ROOMS:
        sys.exit(f"{path} is in no room: {', '.join(ROOMS)}")
    return name


def edits_at(line: str) -> list[Edit]:
    path, _, number = line.rpartition(":")
    found = edits_of(path, (ROOT / path).read_text(), {int(number)})
    return found or sys.exit(f"nothing to change at {line}")


def edit_from(text: str) -> Edit:
    place, _, change = text.partition(": ")
    old, arrow, new = change.partition(" => ")
    path, _, number = place.rpartition(":")
    if not arrow or not number.isdigit():
        sys.exit(f"{text!r} is not 'FILE:LINE: OLD => NEW'")
    lines = (ROOT / path).read_text().splitlines(keepends=True)
    before = "".join(lines[: int(number) - 1])
    at = lines[int(number) - 1].find(old)
    if at < 0:
        sys.exit(f"{place} has no {old!r}: {lines[int(number) - 1].strip()}")
    start = len(before) + at
    return Edit(path, int(number), start, start + len(old), old, new, "by hand")


def drawn(rooms: list[str], count: int, seed: int) -> dict[str, list[Edit]]:
    """Edits by room, as many from each as its share of all lines asks for, five at least."""
    lines = {
        room: sum(len(file.read_text().splitlines()) for file in files(ROOT / SOURCE / room))
        for room in rooms
    }
    least = min(5, count // len(rooms))
    left, total = count - least * len(rooms), sum(lines.values())
    wanted = {room: least + left * lines[room] // total for room in rooms}
    for room in sorted(rooms, key=lambda room: -lines[room])[: count - sum(wanted.values())]:
        wanted[room] += 1
    return {room: sample(ROOT, [f"{SOURCE}/{room}"], wanted[room], seed) for room in rooms}


def tried(
    room: str,
    edits: list[Edit],
    tests: list[str] | None,
    timeout_s: float,
    unfinished: Unfinished | None,
) -> list[Row]:
    """Runs in a process of its own, so that what one room imports is not in another's forks.

    Args:
        room: whose tests run.
        edits: one at a time.
        tests: in place of the room's.
        timeout_s: of a run, at least.
        unfinished: keeps each row as soon as it is there.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the copy is removed
    Watch(math.inf, lambda _: os.kill(os.getpid(), signal.SIGTERM), of=os.getppid())
    with_jax = room.partition("/")[0] in WITH_JAX
    with trials(ROOT, tests or tests_of(room), with_jax, timeout_s) as run:
        sound = run.without_fault()
        if sound.wrong:
            sys.exit(f"{room}: {sound.wrong}\n{run.log()}")
        print(f"{room}: {len(sound.durations)} tests take {sound.seconds:.0f} s", flush=True)
        if run.unsound:
            print(f"  left out, as they fail without a fault: {', '.join(run.unsound)}")
        return [_row(room, edit, run, unfinished) for edit in edits]


def _row(room: str, edit: Edit, run: Trials, unfinished: Unfinished | None) -> Row:
    outcome = run.with_fault(edit)
    verdict = f"noticed by {outcome.failed}" if outcome.failed else "NOT NOTICED"
    print(f"  {edit}  {verdict} ({outcome.seconds:.1f} s)", flush=True)
    seconds = round(outcome.seconds, 1)
    row = {"room": room, "edit": str(edit), "noticed_by": outcome.failed, "seconds": seconds}
    if unfinished:
        unfinished.add(row)
    return row


def tests_of(room: str) -> list[str]:
    return PARTS.get(room) or ROOMS[room]


def cost_s(room: str) -> float:
    """What its tests cost, in seconds of processor time."""
    folders = tuple(one if one.endswith(".py") else f"{one}/" for one in tests_of(room))
    costs = recorded_costs()
    return sum(cost.whole_s for name, cost in costs.items() if name.startswith(folders))


def all_tried(
    by_room: dict[str, list[Edit]], asked: argparse.Namespace, unfinished: Unfinished | None = None
) -> Iterator[Row]:
    """Rows as rooms are done, cheap tests first: a run that is ended knows more."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, context, max_tasks_per_child=1) as pool:
        rooms = sorted(by_room, key=cost_s)
        jobs = [
            pool.submit(tried, room, by_room[room], asked.tests, asked.timeout, unfinished)
            for room in rooms
        ]
        for job in as_completed(jobs):
            yield from job.result()


def place_of(room: str) -> int:
    """The place of a room among all; behind them for one that had that name when it was drawn."""
    rooms = list(ROOMS | PARTS)
    return rooms.index(room) if room in rooms else len(rooms)


def explained(row: Row) -> Row:
    if row["noticed_by"]:
        return row
    reasons = tomllib.loads(SURVIVORS.read_text()) if SURVIVORS.exists() else {}
    return row | {"why": reasons.get(row["edit"], row.get("why", "not explained"))}


def record_drawn(asked: argparse.Namespace) -> None:
    """A draw over all rooms, beside the draws that are recorded already."""
    command = "python benchmarks/experiments/mutants.py"
    command += f" --count {asked.count} --seed {asked.seed}"
    command += "".join(f" --room {room}" for room in asked.room or []) + " --record" * asked.record
    unfinished = Unfinished("mutants", command, resume=asked.resume or asked.as_far)
    done = {row["edit"] for row in unfinished.rows()}
    rooms = asked.room or list(ROOMS)
    by_room = drawn(rooms, asked.count, asked.seed)
    order = {str(edit): place for edits in by_room.values() for place, edit in enumerate(edits)}
    left = {room: [e for e in edits if str(e) not in done] for room, edits in by_room.items()}
    if not asked.as_far:
        for _ in all_tried({room: ones for room, ones in left.items() if ones}, asked, unfinished):
            pass
    rows = sorted(unfinished.rows(), key=lambda x: (rooms.index(x["room"]), order[x["edit"]]))
    before = recorded("mutants", ["rows", "seeds"])[0]
    earlier = [
        row
        for row in before.get("rows", [])
        if row["source"]["command"] != command and row["edit"] not in done
    ]
    rows = sorted(earlier + rows, key=lambda row: place_of(row["room"]))
    seeds = sorted({*before.get("seeds", []), asked.seed})
    record("mutants", command, seeds=seeds, rows=[explained(row) for row in rows])
    if not asked.as_far or not any(left.values()):
        unfinished.end()
    said(rows)


def said(rows: list[Row]) -> None:
    print(f"{sum(row['noticed_by'] is not None for row in rows)} of {len(rows)} noticed")


def main() -> None:
    asked = options()
    by_room: dict[str, list[Edit]] = {}
    for line in asked.line:
        by_room.setdefault(room_of(line), []).extend(edits_at(line))
    for text in asked.edit:
        by_room.setdefault(room_of(text.partition(":")[0]), []).append(edit_from(text))
    if asked.record or asked.as_far or not (by_room or asked.room or asked.tests):
        record_drawn(asked)
        return
    by_room = by_room or drawn(asked.room or list(ROOMS), asked.count, asked.seed)
    began = time.monotonic()
    said(list(all_tried(by_room, asked)))
    print(f"in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
