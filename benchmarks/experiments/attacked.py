"""Live commands whose processes are killed, stopped or starved at random moments.

    python benchmarks/experiments/attacked.py [--attacks 50] [--seed 2] [--only run-torch,lab]
    python benchmarks/experiments/attacked.py --running --seed 3 --attacks 10
    python benchmarks/experiments/attacked.py --again

Each attack starts a command that would go on for very long, waits a random time, start-up included,
and sends SIGKILL, SIGTERM, SIGINT or SIGSTOP to a random one of its processes, the command itself
among them, or starves it (a tenth of the time for four seconds; then the command is interrupted).
Commands take turns, so that all have as many attacks whenever it is ended; `--at-once` of them are
under way side by side. On a busy machine most of these moments are in the start; with `--running`
the time counts from when all its processes are there. Noted is

- *named*: of a server's process that was ended or stopped, whether the command's last line names
  that server, and no other; None where there is nothing to name;
- *seconds* until the command ended; those that go on without who is lost (`quorum`,
  `asynchronous`): *moved_s_ago*, since when they had made no step, some time after the attack;
- *left*: processes, network namespaces, files in /dev/shm and the temporary folder that are not
  cleared within `CLEARED_S`, also where the command itself is killed;
- *earlier*: what came of the same attack before something was mended: `--again` repeats those
  whose outcome is `wrong`, however the rest is recorded already;
- *open*: addresses that a process listened at, other than loopback's, outside the lab's namespaces.

Trainings of placements and labs give up a process that is silent for five minutes: `ANSWER_S` of
their module is made shorter here, to `SILENT_S`.
"""

import collections
import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from benchmarks.attacked_processes import ROOT, Attacked, alive
from benchmarks.command_line import parser_of
from benchmarks.record import record, recorded
from benchmarks.unfinished import Unfinished

GRADWEAVE = (sys.executable, "-m", "gradweave")
TIMEOUT_S = 30.0
"""That commands are given, or promise."""
SILENT_S = 75.0
SILENT = (
    "import sys; import gradweave.execute.running.server_processes as s; "
    f"s.ANSWER_S = {SILENT_S}; from gradweave.cli.main import main; main()"
)
QUORUM_S = 20.0
"""The quorum's silence: two more, and those left end where the first one is lost."""
CLEARED_S = collections.defaultdict(lambda: 40.0, quorum=100.0)
"""By command: workers that find each other when one is lost wait for it several times 20 s, in
PyTorch's file store."""
START_S = 150.0
"""How long it may take until those are there that an attack waits for."""
LATE_S = 20.0
"""After an attack that ends a process. A command itself says what it promises otherwise."""
STARVED_S = 4.0
GIVE_UP_S = 130.0
LOOK_S = 1.0
GOES_ON_S = {"SIGSTOP": 35.0}
"""How long one that goes on is watched; 15 s after other attacks than these."""
KINDS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP", "starved")
MODEL = (
    "transformer:layers=4,width=64,sequence=32,batch=16,microbatches=4,vocabulary=128,value_bytes=4"
)
QUORUM = """
import sys, os, signal, time, datetime, torch, torch.distributed as dist
from gradweave.aggregate import DiLoCo
from gradweave.torch import QuorumMember
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
folder, silent_s, size = sys.argv[1], float(sys.argv[2]), 3
children, parent = [], os.getpid()
for rank in range(size):
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                world_size=size, timeout=datetime.timedelta(seconds=silent_s))
        x = torch.nn.Parameter(torch.zeros(21))
        optimizer = torch.optim.SGD([x], lr=0.1)
        optimizer.register_step_post_hook(QuorumMember([x], DiLoCo(local_steps=4, quorum=2),
                                                       deadline_s=2))
        while os.getppid() == parent:
            optimizer.zero_grad(); ((x - rank) ** 2).sum().backward(); optimizer.step()
            open(f"{folder}/moved-{rank}", "w").close()
            time.sleep(0.02)
        sys.exit()
    children.append(child)
try:
    for child in children:
        os.waitpid(child, 0)
finally:
    for child in children:
        try:
            os.kill(child, signal.SIGCONT)
        except ProcessLookupError:
            pass
"""
ASYNCHRONOUS = """
import sys, time
from gradweave.aggregate.asynchronous import train
from tests.aggregate.asynchronous.cases import task
train(task(workers=2, servers=2, steps=1_000_000), folder=sys.argv[1], checkpoint_every=5,
      timeout_s=30.0)
"""
MOVES = {"quorum": "moved-*", "asynchronous": "run/**/*"}
"""Those that go on without whom they lose, unless too few are left; and files that tell of it."""
PROCESSES = collections.defaultdict(lambda: 5, {"run-torch": 6, "run-mpi": 11, "run-jax": 5})
PROCESSES |= {"lab": 6, "lab-delayed": 7, "train-pipeline": 6, "quorum": 4, "asynchronous": 12}
"""Of each command, itself and what clears up after it included."""
NEEDLESS = ("keeper", "a shell around a server")
"""Without them a command goes on: what clears up after it, and what notes how servers end."""


Row = dict[str, Any]
OURS = {"PYTHONPATH": os.pathsep.join([f"{ROOT}/src", str(ROOT)])}
"""So that commands run these sources, wherever the package is installed from."""


def commands(folder: Path, schedule: Path) -> dict[str, list[str]]:
    """What is attacked, by name."""
    run = [*GRADWEAVE, "bench", str(schedule), "--elements", "100000", "--repetitions", "1000000"]
    run += ["--timeout", f"{TIMEOUT_S:g}", "--backend"]
    silent = [sys.executable, "-c", SILENT]
    pipeline = [*silent, "place", "ring:4", "--train", "--model", MODEL, "--pipeline", "2"]
    pipeline += ["--scheduler", "rank_order", "--time-limit", "5"]
    lab = [*silent, "lab", "ring:4", "--scheduler", "ring", "--repetitions", "10000"]
    return {
        "run-torch": [*run, "torch"],
        "run-mpi": [*run, "mpi"],
        "run-jax": [*run, "jax", "--processes", "2"],
        "measure": [
            *(*GRADWEAVE, "topology", "measure", str(folder / "net.json"), "--servers", "3"),
            *("--slot", "3", "--timeout", f"{TIMEOUT_S:g}"),
        ],
        "lab": lab,
        "lab-delayed": [*lab, "--latency", "20ms"],
        "train-pipeline": [*pipeline, "--steps", "100000"],
        "quorum": [sys.executable, "-c", QUORUM, str(folder), f"{QUORUM_S:g}"],
        "asynchronous": [sys.executable, "-c", ASYNCHRONOUS, str(folder / "run")],
    }


def attack(
    name: str,
    command: list[str],
    folder: Path,
    rng: random.Random,
    label: str,
    like: Row | None,
    running: bool,
) -> Row:
    """Starts a command, attacks it at random or like before, and says what came of it."""
    variables = {"JAX_PLATFORMS": "cpu"} | OURS
    if name != "asynchronous":  # sockets have short names
        variables["RAY_TMPDIR"] = str(folder / "tmp")
    kind = rng.choice(KINDS)
    wait_s = rng.choice((rng.uniform(0, 12), rng.uniform(12, 30), rng.uniform(12, 30)))
    if like is not None:
        kind, wait_s = like["attack"], like["after_s"]
    elif running:
        wait_s /= 2
    row: Row = {"command": name, "attack": kind, "after_s": round(wait_s, 2)}
    one = Attacked(command, folder, label, variables)
    try:
        until = time.monotonic() + START_S
        while time.monotonic() < until and one.process.poll() is None:
            ids = one.ids()
            missing = running and len(ids) < PROCESSES[name]
            if like is not None:
                missing |= str(like.get("victim")) not in map(one.role, ids)
            if not missing:
                break
            time.sleep(LOOK_S / 2)
        row["processes"] = len(one.ids())
        until = time.monotonic() + wait_s
        while time.monotonic() < until and one.process.poll() is None:
            one.look()
            time.sleep(min(LOOK_S, max(until - time.monotonic(), 0.01)))
        ids = one.ids()
        if one.process.poll() is not None or not ids:
            return row | {"failed": "ended before the attack: " + one.last_line()}
        others = ids if ids[0] != one.process.pid else ids[1:] or ids
        victim = ids[0] if rng.random() < 0.25 else rng.choice(others)
        if like is not None:
            victim = next((x for x in ids if one.role(x) == like.get("victim")), victim)
        row |= {"victim": one.role(victim), "title": one.title(victim)}
        begin = time.monotonic()
        strike(victim, kind)
        if not alive(victim) and kind not in ("SIGKILL", "SIGTERM", "SIGINT"):
            return row | {"failed": "the victim had ended"}
        row |= watch(name, one, victim, kind, begin, row["victim"])
    finally:
        one.end()
    return row | {"open": sorted(one.open)}


def strike(victim: int, kind: str) -> None:
    """Sends the signal, or starves the process."""
    with contextlib.suppress(ProcessLookupError):
        if kind != "starved":
            os.kill(victim, getattr(signal, kind))
            return
        until = time.monotonic() + STARVED_S
        while time.monotonic() < until:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(0.18)
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.02)


def named(name: str, victim: str, said: str) -> bool | None:
    """Whether a line names the server that was lost, and no other one; None where none was."""
    owner, _, number = victim.partition(" ")
    if owner not in ("rank", "number") or name in MOVES:
        return None
    if name == "run-jax":  # its first process has no servers, the others two each
        number = str(2 * int(number) - 2)
        if number == "-2":
            return "the process through which the others find each other" in said
    return set(re.findall(r"lost server (\d+)", said)) == {number} and "likewise" not in said


def watch(
    name: str, one: Attacked, victim: int, kind: str, begin: float, role: str
) -> dict[str, Any]:
    """What happens after the attack."""
    itself, found = victim == one.process.pid, dict[str, Any]()
    if kind == "starved" or (itself and kind == "SIGSTOP"):
        if kind == "SIGSTOP":
            time.sleep(3)
            os.kill(victim, signal.SIGCONT)
        time.sleep(3)
        found["survived"] = one.process.poll() is None
        begin = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            one.process.send_signal(signal.SIGINT)
        itself, kind = True, "SIGINT"
    goes_on = not itself and (name in MOVES or role in NEEDLESS)
    limit_s = CLEARED_S[name] if itself else GOES_ON_S.get(kind, 15) if goes_on else GIVE_UP_S
    while time.monotonic() < begin + limit_s and one.process.poll() is None:
        one.look()
        time.sleep(LOOK_S / 2)
    found["seconds"] = round(time.monotonic() - begin, 1)
    if one.process.poll() is None:
        found["ended"] = "went on" if goes_on else "did not end"
        found["before"] = one.last_lines(6)
        if goes_on and name in MOVES:
            found["moved_s_ago"] = one.moved_s_ago(MOVES[name])
        for _ in range(2):  # the first may be lost, where `before` says so
            one.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(CLEARED_S[name] / 2)
                break
    until = time.monotonic() + CLEARED_S[name]
    while (left := one.left()) and time.monotonic() < until:
        time.sleep(0.3)
    said = one.last_line()
    of = None if itself else named(name, role, said)
    return found | {"named": of, "status": one.process.poll(), "said": said, "left": left}


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--attacks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no attack after these")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--running", action="store_true", help="once all processes are there")
    parser.add_argument("--again", action="store_true", help="those that went wrong")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    # Ctrl-C, which a shell has its processes in the background ignore, and these theirs
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = f"python benchmarks/experiments/attacked.py --attacks {asked.attacks} "
    command += f"--seed {asked.seed}" + f" --only {asked.only}" * bool(asked.only)
    command += " --running" * asked.running
    kept = Unfinished("attacked", command, resume=asked.resume, libraries=("torch", "jax", "ray"))
    there = {key(row): row for row in latest([*(recorded_rows() * asked.again), *kept.rows()])}
    names = asked.only.split(",") if asked.only else list(commands(Path(), Path()))
    todo = [
        (number, each, there.get((each, number, asked.seed)))
        for number, each in itertools.product(range(asked.attacks), names)
    ]
    todo = [one for one in todo if one[2] is None or (asked.again and wrong(one[2]))]
    attack_all(todo, asked, kept)
    if not asked.no_record:
        keep(kept, command)


def attack_all(todo: list[tuple[int, str, Row | None]], asked: Any, kept: Unfinished) -> None:
    """Makes attacks, some side by side, and keeps what comes of each."""
    begin, lock = time.monotonic(), threading.Lock()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(asked.at_once) as pool:
        schedule = Path(name) / "ring4.json"
        make = [*GRADWEAVE, "solve", "ring:4", "--scheduler", "ring", "--output", str(schedule)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, env=os.environ | OURS)

        def one(number: int, each: str, like: Row | None) -> None:
            if time.monotonic() - begin > 60 * asked.minutes:
                return
            label = f"{asked.seed}-{number}-{each}-{os.getpid()}"
            folder = Path(name) / label
            folder.mkdir()
            rng = random.Random(f"{asked.seed} {number} {each}")
            command = commands(folder, schedule)[each]
            row = attack(each, command, folder, rng, label, like, asked.running)
            with lock:
                print(row, flush=True)
                kept.add({"seed": asked.seed, "number": number} | row)

        waiting = [pool.submit(told, one, *each) for each in todo]
        try:
            wait(waiting)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def told(one: Callable[..., None], number: int, each: str, like: Row | None) -> None:
    """Runs one attack; a mistake in this file ends no other."""
    try:
        one(number, each, like)
    except Exception as error:
        print(f"{each} {number}: {type(error).__name__}: {error}", flush=True)


def plain(value: Any) -> Any:
    """Without the names of temporary folders."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    folder = rf"{re.escape(tempfile.gettempdir())}/tmp\w+/"
    return re.sub(folder, "", value) if isinstance(value, str) else value


def key(row: Row) -> tuple[str, int, int]:
    return row["command"], row["number"], row["seed"]


def wrong(row: Row) -> bool:
    """Whether an attack shows what is to be mended, or came to nothing."""
    ended = row["attack"] in ("SIGKILL", "SIGTERM", "SIGINT")
    late = row.get("seconds", 0) > LATE_S and ended and "ended" not in row
    stuck = row.get("ended") == "did not end" or (row.get("moved_s_ago") or 0) > LATE_S
    lost = row.get("named") is False or row.get("survived") is False
    return "failed" in row or bool(row.get("left")) or late or stuck or lost


def latest(rows: list[Row]) -> list[Row]:
    """The last of each attack, with those before it."""
    found: dict[tuple[str, int, int], Row] = {}
    for row in rows:
        before = found.get(key(row))
        earlier = [*before.pop("earlier", []), before] if before else row.get("earlier", [])
        found[key(row)] = row | ({"earlier": earlier} if earlier else {})
    return [found[one] for one in sorted(found)]


def recorded_rows() -> list[Row]:
    rows = recorded("attacked", ("rows",))[0].get("rows", [])
    return [row for row in rows if "number" in row]


def keep(kept: Unfinished, command: str) -> None:
    """Records the rows, beside those of other seeds."""
    rows = latest([*recorded_rows(), *kept.rows()])
    rows = [{name: plain(value) for name, value in row.items()} for row in rows]
    counts = collections.Counter(row["command"] for row in rows)
    record("attacked", command, ("torch", "jax", "ray"), attacks=counts, rows=rows)
    kept.end()


if __name__ == "__main__":
    main()
