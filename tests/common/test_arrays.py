"""Arrays in files: the same arrays and text are the same bytes, and are read as they were."""

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")

import jax

from gradweave.common import arrays, pytrees
from gradweave.errors import FileError

TREE = {"weight": np.arange(6.0, dtype=np.float32).reshape(2, 3), "key": jax.random.key(3)}
METADATA = {name: f'{name} é "quoted"' for name in "abcdefgh"}


def test_the_same_arrays_and_text_are_the_same_bytes(tmp_path):
    written = set()
    for number in range(5):
        path = tmp_path / f"{number}.safetensors"
        pytrees.save(path, TREE, dict(sorted(METADATA.items(), reverse=number % 2 == 1)))
        written.add(path.read_bytes())
    assert len(written) == 1


@pytest.mark.parametrize("metadata", [METADATA, {}])
def test_what_is_read_is_what_was_written(tmp_path, metadata):
    path = tmp_path / "tree.safetensors"
    pytrees.save(path, TREE, metadata)
    assert arrays.metadata(path) == metadata
    read = pytrees.load(path, TREE)
    assert read["weight"].tobytes() == TREE["weight"].tobytes()
    assert (jax.random.key_data(read["key"]) == jax.random.key_data(TREE["key"])).all()
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert header % 8 == 0, "arrays begin where processors read them fast"
    with pytest.raises(FileError, match="is missing, or there is no use for it"):
        pytrees.load(path, {"weight": TREE["weight"]})


def test_arrays_are_found_by_their_old_names(tmp_path):
    path = tmp_path / "tree.safetensors"
    pytrees.save(path, {"actor": {"log_spread": TREE["weight"]}}, {})
    like = {"actor": {"log_std": TREE["weight"]}}
    read = pytrees.load(path, like, old_names={"log_spread": "log_std"})
    assert (read["actor"]["log_std"] == TREE["weight"]).all()
