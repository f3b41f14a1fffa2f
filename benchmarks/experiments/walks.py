"""A newcomer's walk along each path of the documentation, from a clone to a result.

    python benchmarks/experiments/walks.py

Each in a new clone of the current commit with an environment of its own and nothing compiled: *see*
a schedule play beside a ring, *run* one on a YAML file of two racks by processes of PyTorch beside
gloo's own, *research* with the scheduler of docs/guides/extend.md compared, verified and tried for
what all schedulers promise. Seconds are wall time, of each command and of all, with the
installation, whose packages come from wherever pip finds them.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.experiment import Rows, grid, run
from tests.docs.blocks import blocks_of

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "python3 -m venv .venv"
PATHS: dict[str, list[str]] = {
    "see": [
        ENVIRONMENT,
        ".venv/bin/pip install -q -e .",
        ".venv/bin/gradweave show torus:4x4 --scheduler ring --scheduler portfolio "
        "--output two.html",
        ".venv/bin/gradweave show bcube:n=4,k=1 --output bcube4.svg --round 3",
    ],
    "run": [
        ENVIRONMENT,
        ".venv/bin/pip install -q -e '.[torch]'",
        ".venv/bin/gradweave solve racks.yaml --runtime gloo --size 16M --output plan.json",
        ".venv/bin/gradweave bench plan.json --backend torch",
    ],
    "research": [
        ENVIRONMENT,
        ".venv/bin/pip install -q -e .",
        "PYTHONPATH=. .venv/bin/gradweave compare torus:4x4 "
        "--scheduler my_scheduler:Collect,ring,grown --seeds 3",
        "PYTHONPATH=. .venv/bin/gradweave solve torus:4x4 --scheduler my_scheduler:Collect "
        "--output mine.json",
        ".venv/bin/gradweave verify mine.json",
        "PYTHONPATH=. .venv/bin/gradweave plugins check my_scheduler:Collect",
    ],
}


MOST_S = {"see": 180.0, "run": 300.0, "research": 300.0}
"""The target of each path."""


def racks(hosts: int = 4) -> str:
    """Two racks of servers at 10 Gbit/s, joined by a link of as much."""
    nodes = [f"- {{id: rack{rack}, kind: switch}}" for rack in range(2)]
    links = ["- {source: rack0, target: rack1, bandwidth: 10Gbit/s, latency: 20us}"]
    for host in range(2 * hosts):
        nodes.append(f"- {{id: host{host}}}")
        rack = f"rack{host // hosts}"
        links.append(
            f"- {{source: host{host}, target: {rack}, bandwidth: 10Gbit/s, latency: 10us}}"
        )
    return "\n".join(["nodes:", *nodes, "links:", *links, ""])


def files() -> dict[str, str]:
    """What a newcomer writes."""
    guide = ROOT / "docs/guides/extend.md"
    (mine,) = (block.code for block in blocks_of(guide) if block.title == "my_scheduler.py")
    return {"racks.yaml": racks(), "my_scheduler.py": mine}


def walk(path: str) -> dict[str, Any]:
    """The commands of a path, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "gradweave")
        environment = os.environ | {"PYTHONPYCACHEPREFIX": "", "XDG_CACHE_HOME": f"{folder}/cache"}
        environment.pop("PYTHONPATH", None)
        steps = []
        for number, command in enumerate([f"git clone -q {ROOT} {clone}", *PATHS[path]]):
            begin = time.perf_counter()
            place = clone if number else Path(folder)
            done = subprocess.run(
                command, shell=True, cwd=place, env=environment, capture_output=True, text=True
            )
            seconds = time.perf_counter() - begin
            if done.returncode:
                raise SystemExit(f"{command}: {done.stderr.strip()}")
            said = command if number else "git clone"
            print(f"{seconds:7.1f} s  {said}", flush=True)
            steps.append({"command": said, "seconds": seconds})
            if not number:
                for name, text in files().items():
                    (clone / name).write_text(text)
    installing = 3  # the clone, its environment, the packages
    install_s, commands_s = (
        sum(step["seconds"] for step in part) for part in (steps[:installing], steps[installing:])
    )
    return {
        "install_s": install_s,
        "commands_s": commands_s,
        "seconds": install_s + commands_s,
        "target_s": MOST_S[path],
        "steps": steps,
    }


if __name__ == "__main__":
    run(__doc__, Rows(grid(path=PATHS), walk))
