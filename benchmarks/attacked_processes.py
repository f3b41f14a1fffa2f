"""What is attacked by experiments/attacked.py: a command under way, with all its processes.

Several may be under way side by side: what is left of a command, and where it listens, is told by a
mark in the environment of its processes, by their ids, and by which files of /dev/shm they had
mapped.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = "GRADWEAVE_ATTACK"
SHARED, NAMESPACES = Path("/dev/shm"), Path("/var/run/netns")
LOOPBACK6 = ("0" * 24 + "01000000", "0000000000000000FFFF00000100007F")


class Attacked:
    """A command under way, and all its processes.

    Args:
        command: its words.
        folder: of its own; holds its output, and its temporary folder.
        label: of this command alone.
        variables: for its environment.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, label: str, variables: Mapping[str, str]
    ) -> None:
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir()
        self._mark = f"{MARK}={label}".encode()
        self._before = names_in(SHARED)
        self._ids: set[int] = set()
        self._looked_at: set[int] = set()
        self._mapped: set[str] = set()
        self.open: set[str] = set()
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **variables, "TMPDIR": str(self.temporary), MARK: label},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def ids(self) -> list[int]:
        """Of its processes that run, the command first, and then in their order."""
        now = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for pid in now - self._looked_at:
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes()
                if self._mark in variables.split(b"\0"):
                    self._ids.add(pid)
                elif not variables:  # it is just starting a program
                    now.discard(pid)
        self._looked_at = now  # an id that is used again is looked at again
        here = filter(alive, self._ids & now)
        return sorted(here, key=lambda pid: (pid != self.process.pid, pid))

    def look(self) -> None:
        """Notes at which addresses its processes listen, and what they have mapped."""
        for pid in self.ids():
            with contextlib.suppress(OSError):
                self.open |= listening(pid)
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
                self._mapped |= set(re.findall(rf"{SHARED}/([^/\s]+)", maps))

    def left(self) -> list[str]:
        """What is still there of it, but the folder in which PyTorch keeps what it compiled."""
        files = [f"tmp/{name}" for name in names_in(self.temporary)]
        ids = {str(pid) for pid in (self.process.pid, *self._ids)}
        new = names_in(SHARED) - self._before
        shared = [x for x in new if x in self._mapped or ids & set(re.findall(r"\d+", x))]
        spaces = [x for x in names_in(NAMESPACES) if x.split("-")[1:2] == [str(self.process.pid)]]
        return [
            *(f"process: {self.title(pid)}" for pid in self.ids()),
            *(name for name in files if not name.startswith("tmp/torchinductor")),
            *(f"shm/{name}" for name in shared),
            *(f"netns/{name}" for name in spaces),
        ]

    def title(self, pid: int) -> str:
        """How a process was started, or calls itself."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            return self.plain(" ".join(text.split("\0")))[:90].strip()
        return ""

    def plain(self, text: str) -> str:
        """A text without what is this machine's or this run's alone."""
        replaced = {sys.executable: "python", f"{ROOT}/": "", str(self.folder): "FOLDER"}
        for one, other in replaced.items():
            text = text.replace(one, other)
        return re.sub(r"/\S*/(site-packages|bin)/", "", text)

    def last_line(self) -> str:
        """Of what the command wrote to standard error."""
        return (self.last_lines(1) or [""])[0]

    def last_lines(self, count: int) -> list[str]:
        """The last of what the command wrote to standard error."""
        text = (self.folder / "err").read_text(errors="replace")
        return [self.plain(x)[:300] for x in text.splitlines() if x.strip()][-count:]

    def moved_s_ago(self, pattern: str) -> float | None:
        """Since when no file of its folder that is named like this has changed."""
        times = []
        for path in self.folder.glob(pattern):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime)
        return round(time.time() - max(times), 1) if times else None

    def end(self) -> None:
        """Kills all that runs, and removes what is left beside its folder."""
        for pid in self.ids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for kind, _, name in (each.partition("/") for each in self.left()):
            if kind == "netns":
                subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)
            elif kind == "shm" and (SHARED / name).is_dir():
                shutil.rmtree(SHARED / name, ignore_errors=True)
            elif kind == "shm":
                (SHARED / name).unlink(missing_ok=True)

    def role(self, pid: int) -> str:
        """Whose process it is: "command", "rank 2", "number 2" of processes, or another's."""
        if pid == self.process.pid:
            return "command"
        with contextlib.suppress(OSError):
            variables = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if "cleared.py" in command or "ray_keeper" in command:
                return "keeper"
            if command.startswith(("/bin/sh", "sh")):
                return "a shell around a server"
            if found := re.search(rb"\0(?:OMPI_COMM_WORLD_RANK|RANK)=(\d+)", variables):
                return f"rank {int(found[1])}"
            if found := re.search(r'"(?:number|rank)": (\d+)', command):
                return f"number {found[1]}"
            if found := re.search(r'"store": \["[^"]*", (\d+)', command):
                return f"rank {found[1]}"
            words = [word for word in command.split("\0") if word]
            if "-m" in words and words[-1].isdigit():  # … NAMESPACE RANK SIZE
                return f"rank {words[-2]}" if words[-2].isdigit() else f"rank {words[-1]}"
        return "other"


def names_in(folder: Path) -> set[str]:
    """Of the files in a folder; none where there is none."""
    with contextlib.suppress(OSError):
        return set(os.listdir(folder))
    return set()


def alive(pid: int) -> bool:
    """Whether a process has not ended."""
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
