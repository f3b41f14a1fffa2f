"""Implicit schedules on the command line: made, verified and read, rank by rank."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import gradweave as gw
from gradweave.cli import implicit_plans
from tests.cli.conftest import Answer


def test_a_file_is_made_verified_and_exported(gradweave: Callable[..., Answer], here: Path):
    made = gradweave("solve", "bcube:n=3,k=1", "--implicit", "--output", "plan.json.gz")
    assert made.status == 0, made
    assert "implicit: 9 images of 16 transfers under translations" in made.stdout
    assert "optimal in rounds among such schedules: at least 8 rounds (cut)" in made.stdout
    checked = gradweave("verify", "plan.json.gz")
    assert checked.stdout.startswith("valid: all_reduce on bcube:n=3,k=1, 8 rounds, 144 transfers")
    assert gradweave("verify", "plan.json.gz", "--json").json["images"] == 9
    table = ["--format", "csv", "--output", "rank.csv"]
    written = gradweave("export", "plan.json.gz", "--rank", "4", *table)
    assert written.stdout.splitlines()[0] == "rank 4 on bcube:n=3,k=1"
    assert len((here / "rank.csv").read_text().splitlines()) == 1 + 32
    assert gradweave("show", "plan.json.gz", "--output", "plan.html").status == 0
    assert gradweave("export", "plan.json.gz", *table).status == 0
    assert len((here / "rank.csv").read_text().splitlines()) == 1 + 144


def test_a_broken_file_is_invalid_in_a_line(gradweave: Callable[..., Answer], here: Path):
    gw.schedulers.implicit("torus:3x4").save(here / "plan.json")
    data = json.loads((here / "plan.json").read_text())
    data["symmetry"]["sizes"] = [4, 3]
    (here / "plan.json").write_text(json.dumps(data))
    answer = gradweave("verify", "plan.json")
    assert answer.status == 1 and len(answer.stdout.splitlines()) == 1
    assert answer.stdout.startswith("invalid: symmetry: a step along axis 0 moves")
    assert gradweave("verify", "plan.json", "--json").json["violation"]["kind"] == "symmetry"


def test_large_networks_of_a_family_get_one(
    gradweave: Callable[..., Answer], here: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(implicit_plans, "EXPLICIT_SERVERS", 8)
    assert gradweave("solve", "ring:9", "--json").json["images"] == 9
    for arguments in (["ring:8"], ["ring:9", "--scheduler", "ring"], ["mesh:3x3"]):
        assert "images" not in gradweave("solve", *arguments, "--json").json


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheduler", "ring"], "--scheduler: expected no --implicit with it"),
        (["--objective", "seconds"], "--objective seconds: expected no --implicit with it"),
        (["--size", "1MB,2MB"], "--implicit: expected one --size with it"),
        (["--job", "all_reduce:bytes=1MB"], "--job: expected no --implicit with it"),
        (["--collective", "broadcast"], "--collective: expected all_reduce"),
    ],
)
def test_options_of_other_schedules_are_refused(gradweave, options, message):
    answer = gradweave("solve", "ring:8", "--implicit", *options)
    assert answer.status == 2 and message in answer.stderr
