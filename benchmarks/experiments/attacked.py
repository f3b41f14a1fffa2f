"""Live commands whose processes are killed, stopped or starved at random moments.

    python benchmarks/experiments/attacked.py [--attacks 50] [--seed 0] [--only run-torch,lab]

Each attack starts a command that would go on for very long, waits a random time, start-up included,
and sends SIGKILL, SIGTERM, SIGINT or SIGSTOP to a random one of its processes, the command itself
among them, or starves it (a tenth of the time for four seconds; then the command is interrupted).
Noted is

- *named*: of a server's process that was killed or stopped, whether the command's last line names
  that server, and no other; None where there is nothing to name;
- *seconds* until the command ended, and *late* where that took longer than promised;
- *left*: processes, network namespaces, files in /dev/shm and the temporary folder afterwards; of a
  command that is killed itself, all that is not cleared within `CLEARED_S`;
- *open*: addresses that a process listened at, other than loopback's, outside the lab's namespaces.

Results are added to those that are recorded for other commands and seeds; the recorded ones were
run by
several of these side by side and put together.
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from command_line import parser_of
from record import RESULTS, load, record

ROOT = Path(__file__).parents[2]
MARK = "GRADWEAVE_ATTACK"
GRADWEAVE = (sys.executable, "-m", "gradweave")
TIMEOUT_S = 30.0
"""That commands are given, or promise."""
CLEARED_S = 40.0
STARVED_S = 4.0
GIVE_UP_S = 150.0
KINDS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP", "starved")
MODEL = (
    "transformer:layers=4,width=64,sequence=32,batch=16,microbatches=4,vocabulary=128,value_bytes=4"
)
QUORUM = """
import sys, os, time, datetime, torch, torch.distributed as dist
from gradweave.aggregate.local.methods import DiLoCo
from gradweave.aggregate.local.quorum import QuorumMember
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
folder, size = sys.argv[1], 3
children, parent = [], os.getpid()
for rank in range(size):
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                world_size=size, timeout=datetime.timedelta(seconds=120))
        x = torch.nn.Parameter(torch.zeros(21))
        optimizer = torch.optim.SGD([x], lr=0.1)
        optimizer.register_step_post_hook(QuorumMember([x], DiLoCo(local_steps=4, quorum=2),
                                                       deadline_s=2))
        begin = time.monotonic()
        while time.monotonic() - begin < 60 and os.getppid() == parent:
            optimizer.zero_grad(); ((x - rank) ** 2).sum().backward(); optimizer.step()
            time.sleep(0.02)
        sys.exit()
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""
ASYNCHRONOUS = """
import sys, time
from gradweave.aggregate.asynchronous import train
from tests.aggregate.asynchronous.cases import task
train(task(workers=2, servers=2, steps=1_000_000), folder=sys.argv[1], checkpoint_every=5,
      timeout_s=30.0)
"""


def commands(folder: Path, schedule: Path) -> dict[str, list[str]]:
    """What is attacked, by name."""
    run = [*GRADWEAVE, "run", str(schedule), "--elements", "100000", "--repetitions", "1000000"]
    run += ["--timeout", f"{TIMEOUT_S:g}", "--backend"]
    pipeline = [*GRADWEAVE, "train-pipeline", "ring:4", "--model", MODEL, "--pipeline", "2"]
    pipeline += ["--strategy", "rank_order"]
    lab = [*GRADWEAVE, "lab", "ring:4", "--schedulers", "ring", "--repetitions", "10000"]
    return {
        "run-torch": [*run, "torch"],
        "run-mpi": [*run, "mpi"],
        "run-jax": [*run, "jax", "--processes", "2"],
        "measure": [
            *(*GRADWEAVE, "measure", str(folder / "net.json"), "--servers", "3"),
            *("--slot", "3", "--timeout", f"{TIMEOUT_S:g}"),
        ],
        "lab": lab,
        "lab-delayed": [*lab, "--latency", "20ms"],
        "train-pipeline": [*pipeline, "--steps", "100000"],
        "quorum": [sys.executable, "-c", QUORUM, str(folder)],
        "asynchronous": [sys.executable, "-c", ASYNCHRONOUS, str(folder / "run")],
    }


LOST_IS_FINE = ("quorum", "asynchronous")
"""Go on without those that are lost, unless too few are left."""


class Attack:
    """A command under way, and all its processes."""

    def __init__(self, name: str, command: list[str], folder: Path, number: str) -> None:
        self.name, self.folder = name, folder
        self._mark = f"{MARK}={number}".encode()
        (folder / "tmp").mkdir()
        self._shared = set(os.listdir("/dev/shm"))
        temporary = {"TMPDIR": str(folder / "tmp"), "RAY_TMPDIR": str(folder / "tmp")}
        if name == "asynchronous":  # sockets have short names
            temporary.pop("RAY_TMPDIR")
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **temporary, MARK: number, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL,
            stdout=(folder / "out").open("w"),
            stderr=(folder / "err").open("w"),
            start_new_session=True,
            preexec_fn=heard_again,
        )
        self.open: set[str] = set()
        self.seen: set[int] = set()

    def pids(self) -> list[int]:
        """Its processes, the command first, and then in the order of their numbers."""
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._mark in (path / "environ").read_bytes().split(b"\0"):
                        found.append(int(path.name))
        self.seen |= set(found)
        return sorted(found, key=lambda pid: (pid != self.process.pid, pid))

    def look(self) -> None:
        """Notes at which addresses its processes listen."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                self.open |= listening(pid)

    def left(self) -> list[str]:
        """What is still there of it."""
        there = (self.folder / "tmp").iterdir()  # but PyTorch's own cache
        files = [f"tmp/{p.name}" for p in there if not p.name.startswith("torchinductor")]
        shared = set(os.listdir("/dev/shm")) - self._shared
        own = [x for x in shared if any(str(pid) in x for pid in (self.process.pid, *self.seen))]
        names = Path("/var/run/netns")
        spaces = [x.name for x in names.iterdir()] if names.exists() else []
        spaces = [x for x in spaces if f"-{self.process.pid}-" in f"{x}-"]
        there = [f"process {pid}: {title(pid)}" for pid in self.pids() if alive(pid)]
        return [*there, *files, *own, *spaces]

    def end(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def heard_again() -> None:
    """Ctrl-C, which a shell has its processes in the background ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def title(pid: int) -> str:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return command.replace(f"{ROOT}/", "")[:80]
    return ""


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def listening(pid: int) -> set[str]:
    """Addresses other than loopback's at which a process listens in this network namespace."""
    if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
        return set()
    mine = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    found = set()
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                address = fields[1].split(":")[0]
                if not (address.endswith("7F") and kind == "tcp") and address not in LOOPBACK6:
                    found.add(f"{kind} {address}")
    return found


LOOPBACK6 = ("0" * 24 + "01000000", "0000000000000000FFFF00000100007F")


def attack(name: str, command: list[str], folder: Path, rng: random.Random, number: str) -> dict:
    """Starts a command, attacks it and says what came of it."""
    one = Attack(name, command, folder, number)
    kind = rng.choice(KINDS)
    wait_s = rng.choice((rng.uniform(0, 10), rng.uniform(10, 45)))
    row: dict[str, Any] = {"command": name, "attack": kind, "after_s": round(wait_s, 2)}
    try:
        until = time.monotonic() + wait_s
        while time.monotonic() < until and one.process.poll() is None:
            one.look()
            time.sleep(0.3)
        pids = [pid for pid in one.pids() if alive(pid)]
        if one.process.poll() is not None or not pids:
            return row | {"failed": "ended before the attack: " + last_line(folder)}
        victim = one.process.pid if rng.random() < 0.3 else rng.choice(pids)
        row |= {"victim": role(one, victim), "title": title(victim)[-60:]}
        begin = time.monotonic()
        strike(victim, kind)
        if not alive(victim) and kind not in ("SIGKILL", "SIGTERM", "SIGINT"):
            return row | {"failed": "the victim had ended"}
        row |= watch(one, victim, kind, begin, row["victim"])
    finally:
        one.end()
    return row | {"open": sorted(one.open)}


def strike(victim: int, kind: str) -> None:
    """Sends the signal, or starves the process."""
    if kind != "starved":
        os.kill(victim, getattr(signal, kind))
        return
    until = time.monotonic() + STARVED_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(0.18)
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.02)


def named(name: str, victim: str, kind: str, said: str) -> bool | None:
    """Whether a line names the server that was lost, and no other one; None where none was."""
    owner, _, number = victim.partition(" ")
    if owner not in ("rank", "number") or name in LOST_IS_FINE or kind == "SIGINT":
        return None
    if name == "run-jax":  # its first process has no servers, the others two each
        number = str(2 * int(number) - 2)
        if number == "-2":
            return "the process by which the others find each other" in said
    return set(re.findall(r"lost server (\d+)", said)) == {number} and "likewise" not in said


def watch(one: Attack, victim: int, kind: str, begin: float, role_of: str) -> dict[str, Any]:
    """What happens after the attack."""
    itself = victim == one.process.pid
    if kind == "starved" or (itself and kind == "SIGSTOP"):
        if kind == "SIGSTOP":
            time.sleep(3)
            os.kill(victim, signal.SIGCONT)
        time.sleep(3)
        survived = one.process.poll() is None
        begin = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            one.process.send_signal(signal.SIGINT)
        found: dict[str, Any] = {"survived": survived}
        itself, kind = True, "SIGINT"
    else:
        found = {}
    limit = begin + (CLEARED_S if itself else GIVE_UP_S)
    goes_on = one.name in LOST_IS_FINE and not itself
    while time.monotonic() < (begin + 15 if goes_on else limit) and one.process.poll() is None:
        one.look()
        time.sleep(0.2)
    seconds = time.monotonic() - begin
    if one.process.poll() is None:
        found["ended"] = "went on" if goes_on else "did not end"
        one.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(CLEARED_S)
    until = time.monotonic() + CLEARED_S
    while (left := one.left()) and time.monotonic() < until:
        time.sleep(0.3)
    said = last_line(one.folder)
    return found | {
        "named": named(one.name, role_of, kind, said),
        "status": one.process.poll(), "seconds": round(seconds, 1), "said": said[:300],
        "left": left,
    }  # fmt: skip


def role(one: Attack, victim: int) -> str:
    """Whose process it is: "command", "rank 2" or another's."""
    if victim == one.process.pid:
        return "command"
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{victim}/environ").read_bytes()
        command = Path(f"/proc/{victim}/cmdline").read_bytes().decode(errors="replace")
        if command.startswith(("/bin/sh", "sh")):
            return "a shell around a server"
        if found := re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", text):
            return f"rank {int(found[1])}"
        if found := re.search(rb"\0RANK=(\d+)", text):
            return f"rank {int(found[1])}"
        if found := re.search(r'"(?:number|rank)": (\d+)', command):
            return f"number {found[1]}"
        if found := re.search(r'"store": \["[^"]*", (\d+)', command):
            return f"rank {found[1]}"
        words = [word for word in command.split("\0") if word]
        if "worker" in command and words[-1].isdigit():  # … NAMESPACE RANK SIZE
            return f"rank {words[-2]}" if words[-2].isdigit() else f"rank {words[-1]}"
    return "other"


def last_line(folder: Path) -> str:
    lines = [x for x in (folder / "err").read_text(errors="replace").splitlines() if x.strip()]
    return lines[-1] if lines else ""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--attacks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no attack after these")
    parser.add_argument("--no-record", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        schedule = Path(name) / "ring4.json"
        make = [*GRADWEAVE, "schedule", "ring:4", "--scheduler", "ring", "--output", str(schedule)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        names = arguments.only.split(",") if arguments.only else list(commands(Path(), schedule))
        begin = time.monotonic()
        for number, each in itertools.product(range(arguments.attacks), names):
            if time.monotonic() - begin < 60 * arguments.minutes:
                label = f"{arguments.seed}-{number}-{each}-{os.getpid()}"
                folder = Path(name) / label
                folder.mkdir()
                rng = random.Random(f"{arguments.seed} {number} {each}")
                command = commands(folder, schedule)[each]
                rows.append({"seed": arguments.seed} | attack(each, command, folder, rng, label))
                print(rows[-1], flush=True)
                if not arguments.no_record:
                    keep(rows)


def keep(rows: list[dict[str, Any]]) -> None:
    """Writes the rows, beside those of other commands and seeds."""
    key: Callable[[dict[str, Any]], Any] = lambda row: (row["command"], row["seed"])  # noqa: E731
    mine = {key(row) for row in rows}
    before = load("attacked")["rows"] if (RESULTS / "attacked.json").exists() else []
    every = [row for row in before if key(row) not in mine] + rows
    counts = collections.Counter(row["command"] for row in every)
    record("attacked", libraries=("torch", "jax", "ray"), attacks=counts, rows=every)


if __name__ == "__main__":
    main()
