"""Bad input: one line on standard error, exit status 2, nothing on standard output, no file."""

import gzip
import json

import pytest

import gradweave as gw
from gradweave.schedules.file import load

NETWORKS = {
    "unknown family": ("grid:n=3", "'grid': unknown family of networks; known are bcube,"),
    "misspelt family": ("bcub:n=3,k=1", "did you mean bcube?"),
    "missing parameter": ("bcube:n=3", "bcube: k is missing; write it as in bcube:n=3,k=1"),
    "missing parameters": ("bcube", "bcube: n and k are missing"),
    "non-integer parameter": ("bcube:n=3.5,k=1", "bcube: n must be an integer"),
    "word for a parameter": ("ring:n=eight", "ring: n must be an integer"),
    "unknown parameter": ("ring:8,size=3", "ring: unknown parameter size; known are n, bandwidth"),
    "one server": ("ring:1", "ring: n must be at least 2, got 1"),
    "negative bandwidth": ("ring:8,bandwidth=-1Gbit/s", "bandwidth '-1Gbit/s'"),
    "zero capacity": ("ring:8,capacity=0", "capacity must be at least 1"),
    "negative latency": ("ring:8,latency=-1us", "latency '-1us'"),
    "too many servers": ("ring:99999999999", "ring: n must be at most"),
    "missing file": ("nowhere.graphml", "nowhere.graphml: No such file or directory"),
    "missing file of no known kind": ("./nowhere", "no such file, and not a specification"),
    "directory": (".", "no such file, and not a specification"),
    "line break": ("ri\nng:8", "expected a name, then parameters"),
    "escape": ("\x1b[31mring:8", "expected a name, then parameters"),
}


@pytest.mark.parametrize(("network", "reason"), NETWORKS.values(), ids=NETWORKS.keys())
def test_a_network_that_cannot_be(refused, network, reason):
    for options in (["--output", "out.json"], ["--output", "out.json.gz", "--json"]):
        assert reason in refused("solve", network, *options)
    assert reason in refused("compare", network, "--output", "table", "--json")


FILES = {
    "disconnected": ("net.edges", "a b\nc d\n", "disconnected: server c cannot be"),
    "one server": ("net.edges", "# switches: s\na s\n", "1 server in"),
    "negative bandwidth": ("net.edges", "a b -5Gbit/s\nb c\n", "-5Gbit/s"),
    "zero capacity": ("net.edges", "a b 1Gbit/s 1us 0\nb c\n", "0"),
    "no bandwidth at all": ("net.edges", "a b 0Gbit/s\n", "0Gbit/s"),
    "too many fields": ("net.edges", "a b 1Gbit/s 1us 1 1us 1\n", "line 1: expected two nodes"),
    "empty": ("net.edges", "", "net.edges"),
    "no graphml": ("net.graphml", "<graph", "not well-formed XML"),
    "entities": ("net.graphml", '<!DOCTYPE x [<!ENTITY y "z">]><x>&y;</x>', "are refused"),
    "no json": ("net.json", "{", "not valid JSON"),
    "other json": ("net.json", "[]", "expected nodes and links"),
    "not text": ("net.edges", b"\xff\xfe\x00", "not UTF-8"),
    "hostile names": ("net.edges", "a\x07b c\x1b]0;x\nd \u202ee\n", "disconnected"),
}


@pytest.mark.parametrize(("name", "text", "reason"), FILES.values(), ids=FILES.keys())
def test_a_network_file_that_holds_none(refused, here, name, text, reason):
    (here / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    line = refused("solve", name, "--output", "out.json")
    assert reason in line and name in line


def test_a_network_file_of_no_known_kind(refused, here):
    (here / "net.toml").write_text("a b")
    assert "unknown kind of file; known are .graphml" in refused("solve", "net.toml")


OPTIONS = {
    "unknown scheduler": (["--scheduler", "rung"], "no scheduler 'rung'; did you mean ring?"),
    "bad scheduler option": (["--scheduler", "merged:tries=x"], "tries must be an integer"),
    "unknown scheduler option": (["--scheduler", "ring:speed=3"], "'speed' is not an option"),
    "scheduler option out of range": (["--scheduler", "merged:tries=0"], "expected 1 to"),
    "huge scheduler option": (["--scheduler", f"merged:swap_passes={10**30}"], "expected 0 to"),
    "huge node id": (["--scheduler", f"ring:order={10**20}.1"], "each of the 4 servers once"),
    "order of other servers": (["--scheduler", "ring:order=0.1.2.9"], "each of the 4 servers"),
    "no such server": (["--scheduler", "central_parameter_server:server=4"], "4 is not a server"),
    "no scheduler": (["--scheduler", ""], "expected at least one scheduler"),
    "no time": (["--time-limit", "0"], "--time-limit"),
    "negative time": (["--time-limit", "-1"], "--time-limit"),
    "time that is no number": (["--time-limit", "nan"], "--time-limit"),
    "time in words": (["--time-limit", "soon"], "'soon' is not a valid float"),
    "endless time": (["--time-limit", "inf"], "--time-limit"),
    "negative gradient": (["--size", "-1"], "--size"),
    "gradient that is no number": (["--size", "nan"], "--size"),
    "gradient in bits": (
        ["--size", "400Mb"],
        "size '400Mb': unknown unit 'Mb'; ",
    ),
    "one file of several sizes": (
        ["--size", "1MB,2MB"],
        "--output: expected one --size with it",
    ),
    "half a range": (["--size", "8.."], "size"),
    "range that falls": (["--size", "1MB..8"], "size"),
    "short option": (["-b", "8"], "No such option '-b'"),
    "negative seed": (["--seed", "-1"], "--seed"),
    "unknown collective": (["--collective", "broadcst"], "'broadcst' is not one of"),
    "root of no collective": (["--root", "0"], "--root: expected --collective broadcast, reduce"),
    "root that is not there": (
        ["--collective", "broadcast", "--root", "x"],
        "no node is named 'x'",
    ),
    "workers for a demand": (
        ["--collective", "all_to_all", "--workers", "2"],
        "--workers: expected --collective all_reduce, reduce_scatter, all_gather with it",
    ),
    "sizes of a demand": (
        ["--collective", "all_to_all", "--size", "1MB,2MB"],
        "--size: expected one size with --collective all_to_all, got 2",
    ),
    "unknown option": (["--fast"], "No such option"),
    "second network": (["ring:5"], "unexpected extra argument"),
    "link that is not there": (["--without-link", "0-2"], "no link joins server 0 and server 2"),
    "node that is not there": (
        ["--without-link", "0-9"],
        "--without-link '0-9': expected two nodes of",
    ),
    "server that is not there": (["--without-server", "leaf"], "no node is named 'leaf'"),
    "too many servers": (
        ["--without-server", "0", "--without-server", "2"],
        "can no longer reach",
    ),
    "slow by nothing": (["--slow", "0-1"], "expected a link and what is left"),
    "faster": (["--slow", "0-1=2"], "must be at most 1"),
    "ready at no time": (
        ["--ready-at", "0"],
        "expected a server and when it is ready, as in 3=50ms",
    ),
    "ready in rounds": (["--ready-at", "0=5ms"], "--ready-at: expected --objective seconds"),
    "ready nowhere": (["--ready-at", "9=5ms", "--objective", "seconds"], "--ready-at: no node is"),
    "ready long ago": (["--ready-at", "0=-1"], "ready-at '-1': expected zero or more"),
    "wrong suffix": (["--output", "out.txt"], "out.txt: expected a name ending in .json or"),
    "missing directory": (["--output", "nowhere/out.json"], "there is no directory nowhere"),
    "a directory": (["--output", "taken.json"], "taken.json: is a directory"),
}


@pytest.mark.parametrize(("options", "reason"), OPTIONS.values(), ids=OPTIONS.keys())
def test_an_option_that_schedule_does_not_take(refused, here, options, reason):
    (here / "taken.json").mkdir()
    given = options if "--output" in options else [*options, "--output", "out.json"]
    for extra in ([], ["--json"]):
        assert reason in refused("solve", "ring:4", *given, *extra)


def test_a_schedule_of_another_network_to_start_from(refused, here):
    gw.schedulers.Ring().schedule(gw.topology.from_spec("ring:6")).save(here / "before.json")
    line = refused("solve", "complete:6", "--start-from", "before.json", "--output", "a.json")
    assert "--start-from: is a schedule of 'ring:n=6', which has no link 0→2; expected one" in line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--seeds", "0"], "--seeds"),
        (["--seeds", "many"], "--seeds"),
        (["--time-limit", "0"], "--time-limit"),
        (["--scheduler", ""], "--scheduler: expected at least one, got none"),
        (["--scheduler", "ring,rung"], "no scheduler 'rung'"),
        (["--without-link", "0-1"], "expected a network for --without-link"),
        (["torus:3x3", "--without-link", "0-4"], "no link joins server 0 and server 4"),
        (["torus:3x3,nocube:n=3"], "'nocube': unknown family"),
        (["--fast"], "No such option"),
        (["--objective", "rounds", "--size", "8..1KB"], "rounds do not depend on size"),
    ],
)
def test_an_option_that_compare_does_not_take(refused, arguments, reason):
    assert reason in refused("compare", *arguments, "--output", "table")


def test_an_empty_name_is_no_network(refused):
    assert "''" in refused("solve", "", "--output", "out.json")
    assert "expected at least one, got none" in refused("compare", "", "--output", "table")


def test_compare_refuses_a_file_for_its_directory(refused, here):
    (here / "table").write_text("mine")
    line = refused("compare", "ring:3", "--seeds", "1", "--output", "table")
    assert "table: cannot be made a directory: File exists" in line
    line = refused("compare", "ring:3", "--seeds", "1", "--output", "table/inside")
    assert "cannot be made a directory" in line


def test_compare_finds_the_last_networks_fault_before_the_first_ones_work(refused, monkeypatch):
    ran = "gradweave.cli.commands.compare.compare_rounds"
    monkeypatch.setattr(ran, lambda *_, **__: pytest.fail("it ran"))
    assert "unknown family" in refused("compare", "ring:3", "nocube:3", "--output", "table")


@pytest.mark.parametrize("arguments", [["solv"], ["--fast"], ["solve"], ["verify"], ["show"]])
def test_an_unknown_verb_or_a_missing_argument(refused, arguments):
    refused(*arguments)


def test_no_verb_shows_the_help_and_is_an_error(gradweave):
    answer = gradweave()
    assert answer.status == 2 and answer.stdout == ""
    assert all(verb in answer.stderr for verb in ("solve", "compare", "verify", "show"))


def good() -> dict:
    """What a schedule file holds, ready to be spoilt."""
    import msgspec

    from gradweave.schedules.file import _from_schedule

    made = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    return json.loads(msgspec.json.encode(_from_schedule(made)))


def spoilt(*path, value) -> bytes:
    held = good()
    inside = held
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return json.dumps(held).encode()


BROKEN = {
    "truncated": (lambda: json.dumps(good()).encode()[:-40], "not a schedule file"),
    "empty": (lambda: b"", "not a schedule file"),
    "another format": (lambda: spoilt("format", value="csv"), "format"),
    "another version": (lambda: spoilt("version", value=3), "version"),
    "wrong lengths": (lambda: spoilt("transfers", "piece", value=[0]), "piece: expected 24 entr"),
    "wrong number of routes": (lambda: spoilt("transfers", "route", value=[[0, 1]]), "route"),
    "short route": (lambda: spoilt("transfers", "route", 3, value=[1]), "route[3]: expected at"),
    "NaN": (lambda: spoilt("transfers", "round", 0, value=float("nan")), "not a schedule file"),
    "NaN bandwidth": (
        lambda: spoilt("topology", "links", "bandwidth_bytes_per_s", 0, value=float("nan")),
        "not a schedule file",
    ),
    "a fraction of a round": (lambda: spoilt("transfers", "round", 0, value=0.5), "round"),
    "negative round": (lambda: spoilt("transfers", "round", 0, value=-1), "round[0]: expected 0"),
    "wrong rounds": (lambda: spoilt("rounds", value=9), "rounds: is 9"),
    "piece out of range": (lambda: spoilt("transfers", "piece", 5, value=4), "piece[5]: expected"),
    "server out of range": (lambda: spoilt("transfers", "source", 2, value=99), "source[2]"),
    "root out of range": (lambda: spoilt("root", 0, value=-1), "root[0]: expected 0 to 3"),
    "route out of range": (lambda: spoilt("transfers", "route", 0, value=[0, 77]), "expected 0"),
    "huge id": (lambda: spoilt("transfers", "source", 0, value=10**30), "source"),
    "huge id on a route": (lambda: spoilt("transfers", "route", 0, value=[0, 10**30]), "route"),
    "unknown op": (lambda: spoilt("transfers", "op", 0, value="add"), "op"),
    "pieces and roots disagree": (lambda: spoilt("pieces", value=3), "pieces: is 3, but root has"),
    "negative capacity": (
        lambda: spoilt("topology", "links", "capacity", 0, value=-1),
        "capacity must be at least 1",
    ),
    "disconnected": (lambda: spoilt("topology", "servers", value=[0, 1, 2, 3, 4]), "disconnected"),
    "node twice": (lambda: spoilt("topology", "servers", value=[0, 1, 2, 2]), "topology.servers"),
    "no topology": (lambda: spoilt("topology", value={}), "topology.name: missing"),
    "not UTF-8": (lambda: json.dumps(good()).encode().replace(b"ring:n", b"\xff"), "not a sched"),
    "too deep": (lambda: b"[" * 100_000, "not a schedule file"),
    "deep options": (
        lambda: spoilt("scheduler", "options", value="@").replace(b'"@"', b'{"a":' * 50_000),
        "not a schedule file",
    ),
}


@pytest.mark.parametrize(("content", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_holds_no_schedule(refused, here, content, reason):
    (here / "broken.json").write_bytes(content())
    (here / "broken.json.gz").write_bytes(gzip.compress(content()))
    for name in ("broken.json", "broken.json.gz"):
        for arguments in (["verify"], ["verify", "--json"], ["show", "--output", "page.html"]):
            line = refused(arguments[0], name, *arguments[1:])
            assert reason in line and name in line


@pytest.mark.parametrize("verb", ["verify", "bench", "export"])
@pytest.mark.parametrize("name", ["net.yaml", "net.json", "net.edges"])
def test_a_network_in_place_of_a_schedule(refused, here, verb, name):
    held = {"nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 1}]}
    (here / name).write_text("0 1\n" if name.endswith("edges") else json.dumps(held))
    options = ["--format", "rankfile", "--output", "ranks"] if verb == "export" else []
    line = refused(verb, name, *options)
    assert f"{name}: is a network; {verb} takes a schedule's file, such as 'gradweave sol" in line


def test_files_are_schedules_or_networks_by_their_content(gradweave, here):
    """Whatever their names: SimAI's and ns-3's files have no suffix, and plans may have any."""
    (here / "TwoGPUs_A100").write_text("3 1 0 1 2 A100\n2\n0 2 800Gbps 1us 0\n1 2 800Gbps 1us 0\n")
    (here / "ns3").write_text("3 1 2\n2\n0 2 800Gbps 1us 0\n1 2 800Gbps 1us 0\n")
    told = gradweave("bound", "star:2,bandwidth=800Gbit/s", "--size", "1GB").stdout
    for name in ("TwoGPUs_A100", "ns3"):
        assert gradweave("bound", name, "--size", "1GB").stdout == told
        assert f"{name}: is a network" in gradweave("verify", name).stderr
    assert gradweave("solve", "ns3", "--output", "plan.json").status == 0
    (here / "plan").write_bytes((here / "plan.json").read_bytes())
    assert gradweave("bound", "plan").stdout == gradweave("bound", "plan.json").stdout
    assert gradweave("verify", "plan").status == 0


def test_a_gzip_bomb(refused, here, monkeypatch):
    """A file that unpacks to more than the limit: a gibibyte, here less for the test's sake."""
    assert load.__kwdefaults__["max_bytes"] == 1 << 30
    monkeypatch.setitem(load.__kwdefaults__, "max_bytes", 1 << 20)
    (here / "bomb.json.gz").write_bytes(gzip.compress(b" " * (16 << 20)))
    for verb in ("verify", "show"):
        line = refused(verb, "bomb.json.gz")
        assert "larger than 1,048,576 bytes unpacked, the most that is read" in line


@pytest.mark.parametrize("spoil", [lambda b: b[:100], lambda b: b[:-8] + bytes(8), lambda _: b"no"])
def test_a_gzip_file_that_is_not_whole(refused, here, spoil):
    (here / "part.json.gz").write_bytes(spoil(gzip.compress(json.dumps(good()).encode())))
    assert "not a whole gzip file" in refused("verify", "part.json.gz")


@pytest.mark.parametrize("verb", ["verify", "show"])
def test_a_file_that_cannot_be_read(refused, here, verb):
    assert "nowhere.json: No such file or directory" in refused(verb, "nowhere.json")
    assert "Is a directory" in refused(verb, ".", *["--output", "a.html"] * (verb == "show"))


def test_a_page_that_cannot_be_written(refused, here):
    (here / "ring.json").write_text(json.dumps(good()))
    (here / "taken.html").mkdir()
    for output, reason in (
        ("page.txt", "page.txt: expected a name ending in .html or .htm"),
        ("nowhere/page.html", "there is no directory nowhere; make it first"),
        ("taken.html", "taken.html: is a directory"),
    ):
        assert reason in refused("show", "ring.json", "--output", output)


def test_an_earlier_output_is_untouched_when_a_run_fails(refused, here):
    for name in ("out.json", "page.html", "bad.json"):
        (here / name).write_text("the good one")
    (here / "table").mkdir()
    (here / "table" / "comparison.csv").write_text("the good one")
    refused("solve", "nocube:3", "--output", "out.json")
    hamiltonian = ("--scheduler", "ring:order=hamiltonian")
    refused("solve", "mesh:3", *hamiltonian, "--output", "out.json", status=1)
    refused("show", "bad.json", "--output", "page.html")
    refused("compare", "nocube:3", "--output", "table")
