"""The files of trainings: what they say, and those of earlier versions, which are still read."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

from gradweave.common import pytrees
from gradweave.errors import FileError, OptionError
from gradweave.training.checkpoint import Format, check_same, differences

FORMAT = Format("gradweave-test", old_names={"told": "sent"})
TREE = {"sent": np.arange(3.0), "key": np.zeros((2, 2), np.int32)}
ABOUT = {"config": {"seed": 3, "steps": [1, 2]}, "updates": 7}
HEAD = {"format": "gradweave-test", "version": "1"}
EARLIER = {
    "of agents": {"gradweave": json.dumps(HEAD | {"about": ABOUT})},
    "of saddle points": HEAD | {"run": json.dumps(ABOUT)},
}


def test_arrays_and_what_they_are_of(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    FORMAT.save(path, TREE, ABOUT)
    assert FORMAT.about(path) == ABOUT
    read = FORMAT.load(path, TREE)
    assert all((read[name] == TREE[name]).all() for name in TREE)


@pytest.mark.parametrize("text", EARLIER.values(), ids=EARLIER.keys())
def test_a_file_of_an_earlier_version_is_read(text: dict[str, str], tmp_path: Path):
    path = tmp_path / "a.safetensors"
    pytrees.save(path, {"told": TREE["sent"], "key": TREE["key"]}, text)
    assert FORMAT.about(path) == ABOUT
    assert (FORMAT.load(path, TREE)["sent"] == TREE["sent"]).all()


def test_entries_of_text_are_read_as_they_are(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    text = HEAD | {"config": "0123456789012345", "updates": "7"}
    pytrees.save(path, TREE, text)
    assert FORMAT.about(path) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({}, "expected a gradweave-test file of version 1, got None"),
        (HEAD | {"version": "2"}, "of version '2'"),
        ({"gradweave": json.dumps(HEAD | {"format": "other", "about": {}})}, "got 'other'"),
        (HEAD | {"about": "[]"}, "does not say what it contains"),
        (HEAD | {"about": "{"}, "about: not JSON"),
    ],
)
def test_a_file_of_another_format_is_refused(text: dict[str, str], said: str, tmp_path: Path):
    path = tmp_path / "a.safetensors"
    pytrees.save(path, TREE, text)
    with pytest.raises(FileError, match=said):
        FORMAT.load(path, TREE)


def test_another_training_is_refused_by_what_differs():
    here = {"a": 1, "b": 2, "c": [3], "d": "x", "same": None}
    check_same(Path("file"), differences(here, here))
    there = here | {"a": 2, "b": 3, "c": [4], "d": "y" * 200}
    with pytest.raises(OptionError) as raised:
        check_same(Path("file"), differences(there, here))
    assert str(raised.value) == (
        "file belongs to another training: a 2 there, 1 here; b 3 there, 2 here; "
        "c [4] there, [3] here and 1 more; give another folder, or remove it"
    )
    assert len(differences(there, here)[3]) < 110
