"""What commands tell JAX before it starts."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")
pytest.importorskip("filelock")

from gradweave.processes.jax_start import MOST_BYTES, compiled_folder
from tests.patience import PATIENCE_S

PROGRAM = """
import json, os
from gradweave.processes.jax_start import start_jax

start_jax(3)
import jax
jax.jit(lambda x: x + 1)(1.0)
place = jax.config.jax_compilation_cache_dir
kept = [name for name in os.listdir(place) if "lambda" in name]
print(json.dumps([len(jax.devices()), place, jax.config.jax_compilation_cache_max_size, kept]))
"""


def started(**variables: str) -> list:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=kept | {"JAX_PLATFORMS": "cpu", **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_programs_are_kept_in_the_users_cache_and_limited(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    devices, place, limit, kept = started(XDG_CACHE_HOME=str(tmp_path))
    assert (devices, place, limit) == (3, str(compiled_folder()), MOST_BYTES)
    assert place.startswith(str(tmp_path / "gradweave" / "jax-")) and kept


def test_a_folder_that_the_user_names_is_used_as_it_is(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    cache = {"XDG_CACHE_HOME": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": str(own)}
    _, place, limit, _ = started(**cache)
    assert (place, limit) == (str(own), -1)
    assert os.listdir(tmp_path) == ["own"]


def test_without_a_place_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiled_folder() is None
