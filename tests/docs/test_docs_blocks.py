"""Every block of README and documentation runs as printed, or says why it does not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BIN = Path(sys.executable).parent
SIZES = {"all": ["--all"], "printed": ["--as-printed"]}
"""Of the environment variable DOCS: what is slow is run too, or all at the size of the page."""
SIZE = os.environ.get("DOCS", "")


def runs(block: Block) -> bool:
    return "not run" not in block.marks


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_each_block_runs_or_says_why_not(page: Path):
    faults = [f"{block.place}: {fault}" for block in blocks_of(page) if (fault := block.fault())]
    assert not faults, "\n".join(faults)


@pytest.mark.always  # what is changed most often, without a test
@pytest.mark.timeout(0 if SIZE == "printed" else 600)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(runs, blocks_of(page)))], ids=page_name
)
def test_page_runs(page: Path, tmp_path: Path):
    blocks = list(filter(runs, blocks_of(page)))
    if any(block.code.startswith("make ") for block in blocks):
        clone(tmp_path)
    else:
        installed(tmp_path)
    needs_root = any("as root" in block.marks for block in blocks)
    run = subprocess.run(
        [
            *(sys.executable, str(ROOT / "tests" / "docs" / "run_page.py"), str(page)),
            *SIZES.get(SIZE, []),
            *(["--without-root"] if needs_root and not emulates() else []),
        ],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stderr


def environment(folder: Path) -> dict[str, str]:
    """That of someone who installed everything, and is in no hurry to see twenty seeds."""
    # What is trained for long compiles once; all else would rather compile sooner.
    sooner = {} if SIZE == "printed" else {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
    return {
        **os.environ,
        **sooner,
        "PATH": os.pathsep.join(map(str, (BIN, folder / ".venv", os.environ["PATH"]))),
        "SEEDS": "1",
        "NETWORKS": "bcube:n=2,k=1",
        # Open MPI refuses to be root's, and to start more processes than there are cores.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }


def installed(folder: Path) -> None:
    """Makes a folder look as if everything was installed in its .venv."""
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(BIN)
    sudo = folder / ".venv" / "sudo"  # only root runs what needs it, who may have none
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)
    for stamp in ("installed-for-use", "installed-for-work"):
        (folder / ".venv" / stamp).touch()


def clone(folder: Path) -> None:
    """Copies what a clone would have: the files that git knows, as they are now."""
    if not (ROOT / ".git").exists():
        pytest.skip("no clone: what belongs to the project is not known")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    installed(folder)


def emulates() -> bool:
    """Whether networks can be emulated here."""
    from tests.lab.test_lab import WHY_NOT

    return WHY_NOT is None
