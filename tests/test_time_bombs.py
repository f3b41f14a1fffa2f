"""What a reader or a question takes grows with its input, and is refused where it cannot.

Each input is doubled four times: a reader that looks at everything again for each part would then
take 256 times as long, one that does not about sixteen times. Between them is a wide margin, and
processor time is counted, so that a busy machine does not matter.
"""

import functools
import gzip
import itertools
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as safetensors

import gradweave.topology as gt
from gradweave import arrays
from gradweave.aggregate.sequences import read_trace
from gradweave.automata import (
    Machine,
    automaton,
    check,
    compose,
    least,
    load,
    minimised,
    operations,
    projection,
    replay,
    values,
    view,
)
from gradweave.automata import decomposition as dividing
from gradweave.errors import GradweaveError, OptionError, SpecError
from gradweave.marl.request import read_request
from gradweave.placement.placement import load_placement, load_workload
from gradweave.schedule import load as load_schedule
from gradweave.specification import parse_spec
from gradweave.topology.units import parse_sizes
from gradweave.training.config import parse_toml

FACTOR = 16
MOST_TIMES = 70
"""Between 16, of a time in proportion, and 256, of one with the square."""
ENOUGH_S = 0.01
"""Less is not worth measuring: what grows too fast takes longer, at these sizes."""


def seconds(do: Callable[[], Any], times: int) -> float:
    """The least processor time of several."""
    taken = []
    for _ in range(times):
        started = time.process_time()
        try:
            do()
        except GradweaveError:
            pass
        taken.append(time.process_time() - started)
    return min(taken)


def refuse_square(small: Callable[[], Any], large: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = max(seconds(small, 3), ENOUGH_S / FACTOR)
        for _ in range(3):  # the garbage collector may run at any time
            if seconds(large, 1) < MOST_TIMES * first:
                return
    pytest.fail(f"takes more than {MOST_TIMES} times as long for an input {FACTOR} times as large")


def lines(n: int, line: str) -> bytes:
    return "\n".join(line.format(i=i, j=i + 1) for i in range(n)).encode()


def node_link(n: int, **more: Any) -> bytes:
    nodes = [{"id": i, **{f"{k}{i}": v for k, v in more.items()}} for i in range(n + 1)]
    edges = [{"source": i, "target": i + 1} for i in range(n)]
    return json.dumps({"nodes": nodes, "links": edges}).encode()


def plain(n: int) -> bytes:
    ids = list(range(n))
    ends = [*ids, *ids[1:], 0], [*ids[1:], 0, *ids]
    columns = {"source": ends[0], "target": ends[1], "capacity": [1] * (2 * n)}
    columns |= {"latency_s": [0.0] * (2 * n), "bandwidth_bytes_per_s": [1e9] * (2 * n)}
    links = {"name": "a", "servers": ids, "switches": [], "links": columns}
    return json.dumps(links).encode()


def graphml(n: int) -> bytes:
    nodes, edges = '<node id="n{i}"/>', '<edge source="n{i}" target="n{j}"/>'
    head = b'<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph>'
    return head + lines(n + 1, nodes) + lines(n, edges) + b"</graph></graphml>"


def nccl(n: int, of_pci: str, close: str) -> bytes:
    return b'<system><cpu numaid="0">%s%s</cpu></system>' % (lines(n, of_pci), close.encode() * n)


def simai(n: int) -> bytes:
    return b"%d 1 0 1 %d X\n%d\n" % (n + 1, n, n) + lines(n, "{i} {j} 1Gbps 1us 0")


def msccl(n: int) -> bytes:
    """As many numbers as are asked for."""
    side = int(n**0.5)
    links = [[int(a != b) for a in range(side)] for b in range(side)]
    both = list(range(side))
    return json.dumps({"links": links, "switches": [[both, both, 10_000, "x"]] * 20}).encode()


def transfers(n: int, suffix: str) -> bytes:
    golden = json.loads((Path(__file__).parent / "golden" / "ring3.json").read_bytes())
    moved = golden["transfers"]
    again = {name: (column * n)[:n] for name, column in moved.items()}
    again["round"] = list(range(n))
    content = json.dumps(golden | {"transfers": again, "rounds": n}).encode()
    return gzip.compress(content, 1) if suffix else content


def machine(n: int) -> bytes:
    moves = "\n".join(f"  s{i}: {{a: s{i + 1}, b: s{i}}}" for i in range(n))
    return f"start: s0\nfinal: s{n}\nmoves:\n{moves}\n".encode()


def final_states(n: int) -> bytes:
    moves = "\n".join(f"  s{i}: {{a: s{i}, b: s0}}" for i in range(n))
    return f"start: s0\nfinal: [{', '.join(['end'] * 20 * n)}]\nmoves:\n{moves}\n".encode()


def placement(n: int) -> bytes:
    stage = {"forward_s": 1, "backward_s": 1, "activation_bytes": 1, "gradient_bytes": 1}
    said = {"format": "gradweave-placement", "version": 1, "network": "", "data_s": 0}
    said |= {"pipeline_s": 0, "strategy": {}, "workload": {"stages": [stage] * n}}
    return json.dumps(said | {"servers": [[i] for i in range(n)]}).encode()


def tensors(n: int) -> bytes:
    return safetensors({f"a{i}": np.zeros(1, np.float32) for i in range(n)}, {"a" * n: "b" * n})


RING = gt.ring(3)
READERS: dict[str, tuple[str, Callable[[int], bytes], int, Callable[[Path], Any]]] = {
    "YAML: the last key twice": (
        ".yaml", lambda n: lines(n, "k{i}: 0") + b"\nk%d: 0\n" % (n - 1), 1500, gt.load
    ),
    "YAML: a network": (".yaml", lambda n: node_link(n), 20, gt.load),
    "JSON: nodes and links": (".json", node_link, 200, gt.load),
    "JSON: attributes": (".json", lambda n: node_link(n, weight=1), 50, gt.load),
    "JSON: a topology object": (".json", plain, 300, gt.load),
    "JSON: names alike": (
        ".json", lambda n: json.dumps({f"link{i}": 0 for i in range(n)} | {"links": [], "nodes": []}
        ).encode(), 50, gt.load
    ),
    "CSV: rows": (".csv", lambda n: b"source,target\n" + lines(n, "a{i},a{j}"), 200, gt.load),
    "CSV: columns": (".csv", lambda n: b"source,target," + b",".join(b"c%d" % i for i in range(n))
                     , 200, gt.load),
    "edges: lines": (".edges", lambda n: lines(n, "a{i} a{j} 1Gbit/s"), 200, gt.load),
    "edges: comments": (".edges", lambda n: lines(n, "# rack{i}: x") + b"\na b", 100, gt.load),
    "edges: switches": (".edges", lambda n: b"# switches: " + lines(n, "a{i}").replace(b"\n", b" ")
                        + b"\n" + lines(n, "a{i} a{j}"), 200, gt.load),
    "GraphML": (".graphml", graphml, 100, gt.load),
    "NCCL: devices": (
        ".xml", lambda n: nccl(n, '<pci busid="{i}"><gpu dev="{i}"/></pci>', ""), 50, gt.load
    ),
    "NCCL: nested": (".xml", lambda n: nccl(n, '<pci busid="{i}">', "</pci>"), 100, gt.load),
    "msccl-tools": (
        ".json", msccl, 1000, lambda path: gt.load(path, "msccl_json")
    ),
    "SimAI": (".edges", simai, 100, gt.load),
    "schedule": (".json", lambda n: transfers(n, ""), 1000, load_schedule),
    "schedule, packed": (".json.gz", lambda n: transfers(n, ".gz"), 1000, load_schedule),
    "placement": (".json", placement, 500, lambda path: load_placement(path, RING)),
    "workload": (
        ".json", lambda n: json.dumps(json.loads(placement(n))["workload"]).encode(), 300,
        load_workload,
    ),
    "machine": (".yaml", machine, 20, load),
    "machine: many ends": (".yaml", final_states, 50, load),
    "machine: many agents": (".yaml", lambda n: machine(2) + b"agents: {%s}" % b", ".join(
        b"a%d: [a, b]" % i for i in range(n)), 20, load),
    "formula": (
        ".txt", lambda n: b" & ".join(b"F a%d" % i for i in range(n)), 50,
        lambda path: automaton(path.read_text())
    ),
    "TOML: keys": (".toml", lambda n: lines(n, "k{i} = 0"), 200, lambda p: read_request(p, {}, ())),
    "TOML: parts of a key": (
        ".toml", lambda n: b"a." * n + b"a = 1", 100, lambda p: parse_toml(p.read_bytes(), "a")
    ),
    "TOML: nested": (
        ".toml", lambda n: b"a = " + b"[" * n + b"]" * n, 100,
        lambda p: parse_toml(p.read_bytes(), "a")
    ),
    "arrays": (".safetensors", tensors, 50, arrays.read),
    "trace": (".csv", lambda n: lines(n, "{i},0,1"), 20, lambda path: read_trace(path, 3)),
    "trace: far apart": (
        ".csv", lambda n: b"%d,0,1" % (500 * n), 100, lambda path: read_trace(path, 3)
    ),
    "specification": (
        ".txt", lambda n: b"a:" + b",".join(b"k%d=0" % i for i in range(n)), 500,
        lambda path: parse_spec(path.read_text())
    ),
    "sizes": (".txt", lambda n: b"1MB," * n, 100, lambda path: parse_sizes(path.read_text())),
}  # fmt: skip
"""Suffix, what makes an input of so many parts, parts of the smaller input, and the reader."""


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion(name: str, tmp_path: Path):
    suffix, content, parts, read = READERS[name]
    paths = [tmp_path / f"small{suffix}", tmp_path / f"large{suffix}"]
    for path, size in zip(paths, (parts, parts * FACTOR), strict=True):
        path.write_bytes(content(size))
    refuse_square(*(functools.partial(read, path) for path in paths))


def chain(n: int) -> Machine:
    """A task of n events in turn, told by nothing but the last one."""
    moves = {str(i): {"a": (str(i + 1), 0.0)} if i < n else {} for i in range(n + 1)}
    return Machine.of(moves, start="0", final=[str(n)])


def two_chains(n: int) -> Machine:
    """Whose states merge in pairs, one pair after the other, once it is hidden which was taken."""
    moves: dict[str, dict[str, tuple[str, float]]] = {"s": {"x": ("a0", 0.0), "y": ("b0", 0.0)}}
    for i in range(n):
        for side in "ab":
            moves[f"{side}{i}"] = {"t": (f"{side}{i + 1}", 0.0)} if i < n - 1 else {}
    return Machine.of(moves, start="s")


def in_turns(n: int) -> tuple[Machine, dict[str, list[str]]]:
    """Two agents who act in turns, each after a shared event of which neither can be left out."""
    shared = [f"c{i}" for i in range(n)]
    events = list(itertools.chain(*zip(itertools.cycle("ab"), shared, strict=False)))
    moves = {str(i): {event: (str(i + 1), 0.0)} for i, event in enumerate(events)}
    end = str(len(events))
    team = Machine.of(moves | {end: {}}, start="0", final=[end])
    return team, {"one": ["a", *shared], "two": ["b", *shared]}


def all_shared(n: int) -> tuple[Machine, dict[str, list[str]]]:
    team, _ = in_turns(n)
    return team, {"one": list(team.events), "two": list(team.events)}


QUESTIONS: dict[str, tuple[Callable[[int], Any], int]] = {
    "the least equal machine": (lambda n: functools.partial(minimised, chain(n)), 60),
    "values": (lambda n: functools.partial(values, chain(n)), 60),
    "a projection": (lambda n: functools.partial(projection, two_chains(n), ["t"]), 60),
    "a part that sees nothing": (lambda n: functools.partial(projection, chain(n), []), 60),
    "a composition": (lambda n: functools.partial(compose, [chain(n), chain(n)]), 60),
    "a check": (lambda n: functools.partial(check, chain(n), [chain(n)]), 60),
}
"""What is asked of a machine of so many states, or twice as many."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_about_a_machine_takes_time_in_proportion(name: str):
    asked, states = QUESTIONS[name]
    refuse_square(asked(states), asked(states * FACTOR))


@pytest.mark.parametrize("division", [in_turns, all_shared])
def test_the_least_set_of_events_is_searched_within_its_limit(division, monkeypatch):
    asked: list[int] = []

    def counted(*given: Any) -> Any:
        asked.append(0)
        return replay(*given)

    monkeypatch.setattr(dividing, "replay", counted)
    monkeypatch.setattr(dividing, "MOST_TRIED", 200)
    monkeypatch.setattr(dividing, "MOST_FOLLOWED", 50_000)
    for shared in (3, 6, 12, 24):  # pairs to hide: 6, 12, 24, 48, and sets of them 2^48
        asked.clear()
        found = least(*division(shared))
        assert found is not None and (found.proved or not found.hidden)
        assert len(asked) <= 200 * (dividing._KEPT_TRACES + 1)


@pytest.mark.parametrize("owners", ["xy", "xyz"])
def test_what_is_gone_through_is_only_what_leaves_each_event_to_somebody(owners: str):
    have = [(agent, event) for agent in owners for event in ("a", "b", "c")][:-1]
    shared = [pair for pair in have if pair[1] != "c" or len(owners) > 2]
    expected = [
        away
        for number in range(len(shared), -1, -1)
        for away in itertools.combinations(shared, number)
        if {event for _, event in set(have) - set(away)} == set("abc")
    ]
    assert list(dividing._shrunk(have)) == expected


def guessing(n: int) -> Machine:
    """Whose view, where x is hidden, has to keep apart all sets of its n states."""
    moves = {"0": {"a": ("0", 0.0), "b": ("0", 0.0), "x": ("1", 0.0)}, "1": {"a": ("2", 0.0)}}
    moves |= {str(i): dict.fromkeys("ab", (str(i + 1), 0.0)) for i in range(2, n)}
    moves |= {str(n): {"b": ("never", 0.0)}, "never": {}}
    return Machine.of(moves, start="0", forbidden=["never"], events="abx")


def test_sets_of_states_are_refused_beyond_the_limit(monkeypatch):
    assert len(view(guessing(4), ["a", "b"]).states) < 40
    monkeypatch.setattr(operations, "MOST_LOOKED_AT", 20_000)
    with pytest.raises(OptionError, match="more than 20,000 moves; take a smaller automaton"):
        view(guessing(24), ["a", "b"])


def test_formulas_are_refused_beyond_the_limit(monkeypatch):
    monkeypatch.setattr("gradweave.automata.formula.MOST_COMPARED", 20_000)
    text = " & ".join(f"F(a{i} & X F b{i})" for i in range(2))
    assert not automaton(text).forbidden.any()
    with pytest.raises(SpecError, match="takes more than 20,000 terms"):
        automaton(" & ".join(f"F(a{i} & X F b{i})" for i in range(8)))


def cycle(n: int, name: str) -> Machine:
    moves = {str(i): {"a": (str((i + 1) % n), 0.0), "b": (str(i), 0.0)} for i in range(n)}
    moves["0"]["c"] = ("end", 1.0)
    return Machine.of(moves | {"end": {}}, start="0", final=["end"], name=name)


def test_a_check_of_machines_that_are_too_large_together_is_refused(monkeypatch):
    team, known = cycle(31, "team"), chain(30)
    ring = {str(i): {"a": (str((i + 1) % 37), 0.0)} for i in range(37)}
    known = Machine.of(ring, start="0", name="known")
    assert check(team, [team], known).explored > 31 * 37
    monkeypatch.setattr(dividing, "MOST_FOLLOWED", 1_000)
    with pytest.raises(OptionError, match="a check follows more than 1,000 moves"):
        check(team, [team], known)


def test_a_search_goes_on_where_a_division_is_too_large(monkeypatch):
    team, division = all_shared(3)
    whole = least(team, division)
    assert whole is not None and whole.proved and not min(map(len, whole.division.values()))
    checked = dividing._checked

    def refuse_few(team: Machine, agents: Any, causal: Any, most: int) -> Any:
        if not all(agent.events for agent in agents):
            raise OptionError("too large")
        return checked(team, agents, causal, most)

    monkeypatch.setattr(dividing, "_checked", refuse_few)
    found = least(team, division)
    assert found is not None and not found.proved
    assert min(map(len, found.division.values())) == 1


def test_names_of_many_states_stay_short():
    blind = projection(chain(5_000), [])
    assert blind.states == ("0,1,2,3,4,5,6,7,… 5001 in all",)
    assert max(map(len, compose([blind, chain(3)]).states)) < 60
