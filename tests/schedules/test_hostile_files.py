"""Files that hold no schedule, by accident or on purpose: one line that names the file, no more."""

import copy
import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradweave.errors import FileError
from gradweave.printable import printable
from gradweave.schedules import Schedule
from gradweave.schedules.file import load, save

GOLDEN = Path(__file__).parents[1] / "golden" / "ring3.json"
GOOD = json.loads(GOLDEN.read_text())
TEXT = json.dumps(GOOD).encode()
PACKED = gzip.compress(TEXT, mtime=0)


def refusal(path: Path, content: bytes | dict, **limits: int) -> str:
    """What loading such a file says, less the file's name."""
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(FileError) as raised:
        load(path, **limits)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable(), "more than one line"
    return message.removeprefix(f"{path}: ")


def changed(*path: str | int, to: object) -> dict:
    """The golden file's object with one value changed."""
    result = copy.deepcopy(GOOD)
    inside = result
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = to
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hostile.json"


NO_JSON = {
    "empty": b"",
    "cut short": TEXT[: len(TEXT) // 2],
    "one byte short": TEXT[:-1],
    "more after the end": TEXT + b"{}",
    "binary": bytes(range(256)) * 16,
    "random": random.Random(0).randbytes(4096),
    "zeros": bytes(4096),
    "UTF-16": TEXT.decode().encode("utf-16"),
    "not UTF-8": TEXT.replace(b"ring:n=3", b"ring\xff\xfe"),
    "half a surrogate pair": TEXT.replace(b"ring:n=3", b"ring\\ud800"),
    "NaN": TEXT.replace(b'"round": [0', b'"round": [NaN'),
    "Infinity": TEXT.replace(b'"latency_s": [1e-06', b'"latency_s": [Infinity'),
    "too large for a float": TEXT.replace(b'"latency_s": [1e-06', b'"latency_s": [1e400'),
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00",
    "a gzip file without the suffix": PACKED,
    "a list": b"[]",
    "null": b"null",
    "deep lists": b"[" * 200_000,
    "deep lists, closed": b'{"unknown": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep objects": TEXT.replace(b'"ring:n=3"', b'{"a":' * 200_000),
    "an integer of 10,000 digits": TEXT.replace(b'"rounds": 4', b'"rounds": ' + b"7" * 10_000),
}


@pytest.mark.parametrize("content", NO_JSON.values(), ids=NO_JSON)
def test_what_is_no_json_or_not_of_this_shape_is_refused(path, content):
    assert refusal(path, content).startswith("not a schedule file: ")


NO_GZIP = {
    "cut short": PACKED[: len(PACKED) // 2],
    "one byte short": PACKED[:-1],
    "not gzip": TEXT,
    "a wrong checksum": PACKED[:-8] + bytes(8),
    "damaged inside": PACKED[:60] + b"\xff\xff\xff\xff" + PACKED[64:],
    "junk after the end": PACKED + b"junk",
}


@pytest.mark.parametrize("content", NO_GZIP.values(), ids=NO_GZIP)
def test_what_is_no_whole_gzip_file_is_refused(tmp_path, content):
    said = refusal(tmp_path / "hostile.json.gz", content)
    assert said.startswith("not a whole gzip file: ")


def test_a_packed_file_is_read_like_any_other(tmp_path):
    assert refusal(tmp_path / "a.json.gz", b"") == "not a schedule file: Input data was truncated"
    assert "not a schedule file" in refusal(tmp_path / "b.json.gz", gzip.compress(TEXT[:-1]))


COLUMNS = ("round", "piece", "source", "target", "op", "route")
NUMBERS = ("round", "piece", "source", "target")


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_of_another_length_is_refused(path, column):
    values = GOOD["transfers"][column]
    named = "piece" if column == "round" else column  # the next column is held against `round`
    for wrong in (values[:-1], values + values[:1], []):
        said = refusal(path, changed("transfers", column, to=wrong))
        assert said.startswith(f"{named}: expected {12 if column != 'round' else len(wrong)} ")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    "wrong", ["0", "", 0.5, 1.0, True, False, None, {}, [[0]]], ids=lambda wrong: repr(wrong)
)
def test_a_value_of_another_type_is_refused(path, column, wrong):
    where = ("transfers", column, 0) if column != "route" else ("transfers", "route", 0, 0)
    said = refusal(path, changed(*where, to=wrong))
    assert said.startswith("not a schedule file: ")
    assert f"$.transfers.{column}[0]" in said
    assert column in refusal(path, changed("transfers", column, to=wrong))


@pytest.mark.parametrize("column", [*NUMBERS, "route"])
@pytest.mark.parametrize("wrong", [-1, 12, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, 10**300])
def test_a_number_out_of_range_is_refused(path, column, wrong):
    where = ("transfers", column, 0) if column != "route" else ("transfers", "route", 0, 0)
    said = refusal(path, changed(*where, to=wrong))
    # Round 12 is one that there may be; but then the file's own count of rounds is wrong.
    assert re.match(rf"{column}(_nodes)?(\[0\])?: |rounds: is 4, but", said)


@pytest.mark.parametrize("route", [[], [0]])
def test_a_route_without_ends_is_refused(path, route):
    said = refusal(path, changed("transfers", "route", 3, to=route))
    assert said == f"route[3]: expected at least its source and target, got {len(route)} nodes"


@pytest.mark.parametrize("key", sorted(GOOD.keys() - {"scheduler", "bound"}))
def test_a_missing_key_is_named(path, key):
    less = {name: value for name, value in GOOD.items() if name != key}
    said = refusal(path, less)
    assert said == f"not a schedule file: Object missing required field `{key}`"


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_named(path, column):
    less = {name: values for name, values in GOOD["transfers"].items() if name != column}
    said = refusal(path, changed("transfers", to=less))
    assert said.endswith(f"missing required field `{column}` - at `$.transfers`")


@pytest.mark.parametrize("column", sorted(GOOD["topology"]["links"]))
def test_a_missing_column_of_the_links_is_named(path, column):
    links = GOOD["topology"]["links"]
    less = {name: values for name, values in links.items() if name != column}
    assert refusal(path, changed("topology", "links", to=less)) == (
        f"topology.links.{column}: missing"
    )
    short = {**links, column: links[column][:-1]}
    assert "differ in length" in refusal(path, changed("topology", "links", to=short))


def twice(links: dict) -> dict:
    return {name: values + values for name, values in links.items()}


WRONG = [
    (("format",), "gradweave-topology", "not a schedule file: Invalid enum value 'gradweave-topol"),
    (("version",), 4, "not a schedule file: Invalid enum value 4 - at `$.version`"),
    (("version",), "1", "not a schedule file: Expected `int`, got `str` - at `$.version`"),
    (("collective",), "broadcast", "not a schedule file: Invalid enum value 'broadcast'"),
    (("pieces",), 4, "pieces: is 4, but root has 3 entries; they must agree"),
    (("pieces",), -1, "pieces: is -1, but root has 3 entries; they must agree"),
    (("root",), [0, 1], "pieces: is 3, but root has 2 entries; they must agree"),
    (("root", 2), 3, "root[2]: expected 0 to 2, got 3"),
    (("root", 0), 2**70, "root: an integer does not fit in 64 bits"),
    (("rounds",), 3, "rounds: is 3, but the last transfer is in round 3"),
    (("rounds",), -1, "not a schedule file: Expected `int` >= 0 - at `$.rounds`"),
    (("bound",), {"rounds": -1, "kind": "cut"}, "not a schedule file: Expected `int` >= 0"),
    (("scheduler",), {"options": {}}, "not a schedule file: Object missing required field `name`"),
    (("scheduler", "seed"), 0.5, "not a schedule file: Expected `int | null`, got `float`"),
    (("topology",), [], "not a schedule file: Expected `object`, got `array` - at `$.topology`"),
    (("topology", "servers"), [0, 1, 1], "topology.servers, topology.switches: 1 is listed twice"),
    (("topology", "servers"), [0, 1], "a link names node 2, but nodes are 0 to 1"),
    (("topology", "servers"), [0, 1, 2, 3], "disconnected: server 3 cannot be reached"),
    (("topology", "servers"), [0, 1, 5], "topology.servers, topology.switches: the ids of these 3"),
    (("topology", "servers"), [0, 1, None], "topology.servers[2]: expected an integer, got null"),
    (("topology", "servers"), [True] * 3, "topology.servers[0]: expected an integer, got true"),
    (("topology", "lables"), ["a", "b", "c"], "unknown attribute 'lables'; did you mean labels?"),
    (("topology", "links", "target", 0), 9, "a link names node 9, but nodes are 0 to 2"),
    (("topology", "links", "target", 0), 0, "link 0→0: joins a node to itself"),
    (("topology", "links", "capacity", 0), 0, "link 0→1: capacity must be at least 1 and finite"),
    (("topology", "links", "capacity", 0), 1.5, "topology.links.capacity[0]: expected an integer"),
    (("topology", "links", "latency_s", 1), -1, "link 0→2: latency_s must be zero or positive"),
    (("topology", "links"), twice(GOOD["topology"]["links"]), "link 0→1: is given twice"),
]


@pytest.mark.parametrize(
    ("where", "wrong", "message"),
    WRONG,
    ids=[f"{where[-1]}={wrong!s:.20}" for where, wrong, _ in WRONG],
)
def test_fields_that_contradict_each_other_are_refused(path, where, wrong, message):
    assert refusal(path, changed(*where, to=wrong)).startswith(message)


def test_what_a_file_says_is_shown_in_one_line(path):
    hostile = changed("topology", "labels", to=["a\nb", "\x1b[31m", "c", "d"])
    hostile["topology"]["servers"] = [0, 1, 2, 3]
    assert "disconnected: server d cannot be reached from server a\\nb (" in refusal(path, hostile)
    hostile["topology"]["servers"] = [0, 1, 2]
    hostile["topology"]["labels"].pop()
    hostile["topology"]["links"]["capacity"][0] = 0
    assert refusal(path, hostile).startswith("link a\\nb→\\x1b[31m: capacity must be at least 1")


def test_a_well_formed_schedule_that_is_not_valid_is_read(path):
    path.write_text(json.dumps(changed("transfers", "route", 0, to=[0, 0])))
    assert load(path).route(0) == (0, 0)
    nothing = changed("transfers", to={column: [] for column in COLUMNS})
    path.write_text(json.dumps(nothing | {"rounds": 0, "anything": "else"}))
    assert load(path).num_transfers == 0


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_file_larger_than_the_limit_is_refused(tmp_path, suffix):
    path = tmp_path / f"large{suffix}"
    content = TEXT if suffix == ".json" else PACKED
    path.write_bytes(content)
    assert load(path, max_bytes=len(TEXT)).num_transfers == 12
    said = refusal(path, content, max_bytes=len(TEXT) - 1)
    assert said.startswith(f"larger than {len(TEXT) - 1:,} bytes")
    bomb = gzip.compress(bytes(10_000_000))
    if suffix == ".json.gz":
        assert "larger than 1,000 bytes unpacked" in refusal(path, bomb, max_bytes=1000)


BOMB = """
import resource, sys, time
from gradweave.errors import FileError
from gradweave.printable import printable
from gradweave.schedules.file import load
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    load(sys.argv[1])
except FileError as error:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(grown, time.process_time() - started, error)
"""


def test_two_gibibytes_in_two_megabytes_are_refused_quickly_in_bounded_memory(tmp_path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(1 << 24)) * 128)  # members one after the other: one file
    assert path.stat().st_size < 1 << 22
    ran = subprocess.run([sys.executable, "-c", BOMB, path], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    grown_kib, seconds, said = ran.stdout.split(maxsplit=2)
    assert said.strip() == (
        f"{path}: larger than 1,073,741,824 bytes unpacked, the most that is read"
    )
    assert int(grown_kib) < 1.5 * 2**20, f"took {int(grown_kib) / 2**20:.2f} GiB; expected < 1.5"
    assert float(seconds) < 20, f"took {seconds} s; expected < 20"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.json", "No such file or directory"),
        ("missing/schedule.json.gz", "No such file or directory"),
        ("", "Is a directory"),
        ("null\0character.json", "embedded null byte"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_opened_is_named(tmp_path, name, reason):
    with pytest.raises(FileError) as raised:
        load(tmp_path / name)
    assert str(raised.value) == f"{printable(str(tmp_path / name))}: {reason}"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/schedule.json", "No such file or directory"),
        ("missing/schedule.json.gz", "No such file or directory"),
        ("", "Is a directory"),
        ("null\0character.json", "embedded null byte"),
        ("x" * 300, "File name too long"),
        ("file/schedule.json", "Not a directory"),
    ],
)
def test_what_cannot_be_written_is_named_and_leaves_nothing(tmp_path, name, reason):
    schedule: Schedule = load(GOLDEN)
    (tmp_path / "file").touch()
    with pytest.raises(FileError) as raised:
        save(schedule, tmp_path / name)
    assert str(raised.value) == f"{str(tmp_path / name)!r} cannot be written: {reason}"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
