"""``gradweave export``."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradweave.cli.commands.export import export
from gradweave.errors import FileError, OptionError, ScheduleError
from gradweave.export import to_chakra_et, to_msccl_xml, to_mscclpp_json
from tests.conformance.made import made as schedule


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    schedule("ring:8", "ring", "all_reduce").save("ring.json")
    return Path("ring.json")


def output(*arguments: object) -> str:
    answer = CliRunner().invoke(export, [str(each) for each in arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


MSCCL = ("--name", "mine", "--instances", 2, "--protocol", "LL128", "--dialect", "rccl")


def test_msccl(file):
    options = (*MSCCL, "--out-of-place", "--min-bytes", 1, "--max-bytes", 2)
    said = output(file, "--format", "msccl-xml", "--output", "a.xml", *options)
    assert said.splitlines() == [
        "all_reduce on ring:n=8, 8 servers, 8 pieces",
        "written to a.xml",
        "read by MSCCL and by RCCL before 2.28.3; RCCL from 2.28.3 (ROCm 7.13) on ignores it "
        "without a message",
    ]
    assert Path("a.xml").read_bytes() == to_msccl_xml(
        schedule("ring:8", "ring", "all_reduce"),
        name="mine",
        instances=2,
        protocol="LL128",
        dialect="rccl",
        in_place=False,
        min_bytes=1,
        max_bytes=2,
    )


def test_mscclpp(file):
    said = json.loads(
        output(file, "--format", "mscclpp-json", "--output", "a.json", "--in-place", "--json")
    )
    assert said == {
        "file": "ring.json",
        "format": "mscclpp-json",
        "topology": "ring:n=8",
        "collective": "all_reduce",
        "servers": 8,
        "pieces": 8,
        "transfers": 112,
        "output": ["a.json"],
    }
    plan = to_mscclpp_json(schedule("ring:8", "ring", "all_reduce"))
    assert Path("a.json").read_bytes() == plan


def test_chakra(file):
    said = output(file, "--format", "chakra-et", "--output", "a", "--size", 4096)
    assert said.splitlines()[-2:] == [
        "written to a.0.et to a.7.et",
        'use: {"all-reduce-implementation-custom": ["a"]} in the system file of ASTRA-sim, for a '
        "workload with this collective of 4 KiB",
    ]
    traces = to_chakra_et(schedule("ring:8", "ring", "all_reduce"), gradient_bytes=4096)
    assert [Path(f"a.{rank}.et").read_bytes() for rank in range(8)] == traces


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        (["--format", "chakra-et"], OptionError, "--size: chakra-et needs the size"),
        (
            ["--format", "msccl-xml", "--size", "8"],
            OptionError,
            "--size is for chakra-et, perfetto and --equal-pieces; leave it out",
        ),
        (
            ["--format", "mscclpp-json", "--dialect", "rccl"],
            OptionError,
            "--dialect is for msccl-xml, not for mscclpp-json; leave it out",
        ),
        (
            ["--format", "chakra-et", "--size", "64", "--out-of-place"],
            OptionError,
            "--in-place or --out-of-place is for msccl-xml, mscclpp-json, not for chakra-et",
        ),
        (
            ["--format", "msccl-xml", "--instances", "99"],
            OptionError,
            "instances: expected 1 to 32",
        ),
        (["--format", "mscclpp-json", "--instances", "99"], ScheduleError, "at most 108 thread bl"),
        (["--format", "chakra-et", "--size", "8"], OptionError, "expected at least 32"),
        (["--format", "msccl-xml", "--output", "nowhere/a.xml"], FileError, "no directory nowhere"),
    ],
)
def test_bad_options(file, options, error, reason):
    before = sorted(Path().iterdir())
    with pytest.raises(error) as raised:
        output(file, "--output", "a", *options)
    assert reason in str(raised.value)
    assert sorted(Path().iterdir()) == before


def test_no_such_file(file):
    with pytest.raises(FileError):
        output("nowhere.json", "--format", "msccl-xml", "--output", "a.xml")
