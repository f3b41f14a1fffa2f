"""What the leader of a measurement asks for, and makes of the answers; nothing is sent."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradweave.errors import OptionError, RunError
from gradweave.probe import session
from gradweave.probe.file import Record
from gradweave.probe.flows import Window, grown_seconds
from gradweave.probe.infer import Latencies
from gradweave.probe.session import Terms, _finer, _is_little, _Leader, _rate, follow
from gradweave.probe.traffic import Rate
from gradweave.probe.transport import PeerError, receive_object, send_object


class Clock:
    """Stands still but for sleeping."""

    def __init__(self) -> None:
        self.now_s, self.slept = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(session, "time", made)
    return made


def leader(size: int, tmp_path: Path, **terms) -> _Leader:
    transport = SimpleNamespace(rank=0, size=size, library="none")
    record = Record(tmp_path / "kept.json")
    return _Leader(transport, record, Terms(**terms), lambda _: None)  # type: ignore[arg-type]


def result(bytes_per_s: float | None, arrivals: int = 9) -> dict:
    parts = [] if bytes_per_s is None else [bytes_per_s] * 3
    return {"bytes_per_s": bytes_per_s, "parts": parts, "arrivals": arrivals}


def test_slots_follow_each_other_by_the_clock(clock: Clock, tmp_path: Path):
    one = leader(3, tmp_path, slot_s=0.5)
    one._trip_s = np.array([[0, 0.25, 0.5], [0.25, 0, 0.125], [0.5, 0.125, 0]])
    one._offset = np.array([0.0, 10.0, -10.0])
    one._seen = {(0, 1): [800.0], (2, 1): [0.0, 100.0], (1, 0): [1000.0, 500.0]}
    asked = {}

    def ask(tasks, seconds):
        asked.update(tasks=tasks, seconds=seconds)
        return {
            1: [{"slot": 0, "peer": 2, "x": 21}, {"slot": 0, "peer": 0, "x": 1}],
            0: [{"slot": 1, "peer": 1, "x": 10}],
        }

    one._ask = ask  # type: ignore[method-assign]
    windows = [[Window(1000, 28), Window(50, 2)], [Window(100, 3)]]
    found = one._run([[(0, 1), (2, 1)], [(1, 0)]], windows, longer=1.5)
    assert [[flow["x"] for flow in slot] for slot in found] == [[1, 21], [10]]
    assert grown_seconds(Window(1000, 28), 0.25) == 2 * 0.25
    # Once the plan has come, in 0.15 s and the longest trip. The first slot's windows grow in two
    # trips of 0.25, and are empty after 28,000 bytes at 400 a second, half of what was seen alone.
    first = 100 + 0.15 + 0.5
    lasts = 1.5 * 0.5 + 0.5 + 0.05
    second = first + lasts + 0.25 + 28_000 / 400 + 1.5 * 0.03
    # The other one's in a trip, which is longest; and 300 bytes at the 500 seen in company.
    end = second + (1.5 * 0.5 + 0.25 + 0.05) + 0.25 + 300 / 500 + 1.5 * 0.03
    for rank, ahead in enumerate((0, 10, -10)):
        task = asked["tasks"][rank]
        slots = task["slots"]
        assert task["do"] == "slots"
        assert [slot["at"] for slot in slots] == pytest.approx([first + ahead, second + ahead])
        assert [slot["seconds"] for slot in slots] == pytest.approx([lasts, 1.05])
        assert [slot["grown_s"] for slot in slots] == pytest.approx([0.55, 0.3])
        flows = [slot["flows"] for slot in slots]
        assert flows == [[[0, 1, 1000, 28], [2, 1, 50, 2]], [[1, 0, 100, 3]]]
    assert asked["seconds"] == pytest.approx(end - 100)
    one._ask = lambda *_, **__: {1: [{"slot": 0, "peer": 2, "error": "gone"}]}  # type: ignore
    with pytest.raises(PeerError, match="rank 2: gone"):
        one._run([[(2, 1)]], [[Window(50, 2)]], longer=1.0)


def test_windows_are_by_what_servers_links_would_leave(tmp_path: Path):
    one = leader(4, tmp_path)
    one._trip_s = np.full((4, 4), 0.01)
    for flow, rate in [((0, 1), 4e6), ((0, 2), 1e6), ((0, 3), 8e6), ((2, 1), 1e6), ((3, 0), 1e6)]:
        one._saw(flow, rate)
    assert one._sends.tolist() == [8e6, 0, 1e6, 1e6]
    assert one._receives.tolist() == [1e6, 4e6, 1e6, 8e6]
    assert one._typical(0, 1) == 2e6  # half of what it had alone
    one._saw((0, 1), 3e6)
    one._saw((0, 1), 5e6)
    one._saw((0, 1), 9e6)
    assert one._typical(0, 1) == 5e6
    # 0's three flows get two thirds of 9e6 each, 1's two all of what it receives: of these and
    # twice what is typical the least, in chunks of 8 ms of what is typical if that is less.
    windows = one._windows([(0, 1), (0, 2), (0, 3), (2, 1), (3, 0)])
    rates = [6e6, 1e6, 6e6, 1e6, 1e6]
    typical = [5e6, 5e5, 4e6, 5e5, 5e5]
    for window, rate, known in zip(windows, rates, typical, strict=True):
        whole = int(rate * 0.008) * -(-int(rate * 0.04) // int(rate * 0.008))
        assert window.chunk_bytes == int(min(rate, known) * 0.008)
        assert window.posted == -(-whole // window.chunk_bytes)
    # Of a lone flow, neither what its sender sends nor what its receiver receives is doubled.
    for source, target, flows in [(3, 0, [((3, 0), 2e6), ((1, 0), 5e6)]),
                                  (2, 3, [((2, 3), 3e6), ((2, 1), 9e6)])]:  # fmt: skip
        lone = leader(4, tmp_path)
        for flow, rate in flows:
            lone._saw(flow, rate)
            lone._saw(flow, rate)
        (window,) = lone._windows([(source, target)])
        assert window == Window(int(flows[0][1] * 0.008), 4)
    slot = [(0, 1), (0, 2)]
    drained = [
        window.total_bytes / one._typical(*flow)
        for window, flow in zip(windows[:2], slot, strict=True)
    ]
    assert one._drained_s(slot, windows[:2]) == max(drained)


def test_too_little_is_measured_again_longer_and_in_smaller_chunks(tmp_path: Path):
    one = leader(3, tmp_path)
    one._windows = lambda slot: [Window(1200, 4)] * len(slot)  # type: ignore[method-assign]
    answers = [
        [[result(5.0), result(6.0, 2)], [result(7.0)]],
        [[result(5.5), result(6.5, 1)]],
        [[result(5.75), result(6.75, 2)]],
    ]
    asked = []

    def run(slots, windows, longer):
        asked.append((slots, windows, longer))
        return answers[len(asked) - 1]

    one._run = run  # type: ignore[method-assign]
    slots = [[(0, 1), (1, 0)], [(2, 1)]]
    rates = one._rates(slots, added=False)
    assert [[rate.bytes_per_s for rate in some] for some in rates] == [[5.75, 6.75], [7.0]]
    # 12 chunks should come: of 2 arrivals a sixth of the size, but of no less than 256 bytes.
    whole = Window(1200, 4)
    assert asked == [
        (slots, [[whole, whole], [whole]], 1.0),
        (slots[:1], [[whole, Window(256, 19)]], 2.0),
        (slots[:1], [[whole, Window(256, 19)]], 3.0),
    ]
    assert one._seen == {(0, 1): [5.75], (1, 0): [6.75], (2, 1): [7.0]}
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert [[flow["bytes_per_s"] for flow in slot] for slot in kept["slots"]] == [[5.75, 6.75], [7]]
    assert kept["slots"][1][0] == {"flow": [2, 1], "bytes_per_s": 7.0, "parts": [7.0] * 3}
    answers, asked = [[[result(5.0, 1)]], [[result(None, 0)]]], []
    assert one._rates([[(0, 1)]], added=True)[0][0] == Rate(5.0, (5.0,) * 3)
    assert asked[0][2] == 1.5  # of sums longer, and any rate will do
    answers, asked = [[[result(None, 0)]]] * 3, []
    with pytest.raises(PeerError, match="rank 1: nothing arrived from server 0 in time"):
        one._rates([[(0, 1)]], added=True)
    assert len(asked) == 3
    answers, asked = [[[result(1.0)]] * 12, [[result(1.0)]]], []
    assert len(one._rates([[(0, 1)]] * 13, added=False)) == 13  # twelve at a time


def test_what_is_little_and_how_much_finer_it_gets():
    assert _is_little(result(5.0, 2), added=False) and not _is_little(result(5.0, 3), added=False)
    assert _is_little(result(None, 0), added=True) and not _is_little(result(5.0, 0), added=True)
    assert _finer(Window(24_000, 2), result(1.0, 2)).chunk_bytes == 4000
    assert _finer(Window(24_000, 2), result(1.0, 1)).chunk_bytes == 2000
    assert _finer(Window(24_000, 2), result(None, 0)).chunk_bytes == 2000
    assert _rate(result(5.0)) == Rate(5.0, (5.0,) * 3)
    nothing = _rate(result(None))
    assert np.isnan(nothing.bytes_per_s) and np.isnan(nothing.parts).all()


def test_half_of_the_shortest_round_trip_is_the_latency(tmp_path: Path):
    one, told = leader(3, tmp_path), []
    one._hosts = ["a", "b", "c"]
    trips = {(0, 1): [4.0, 2.0, 3.0], (0, 2): [6.0, 6.0, 10.0], (1, 2): [8.0]}

    def ask(tasks, seconds):
        assert seconds == 20.0
        told.append(tasks)
        do = tasks[0]["do"]
        answers: dict = {rank: {} for rank in range(3)}
        for (a, b), some in trips.items():
            if do == "pings":
                answers[a][str(b)] = some
            else:
                answers[a][str(b)] = {"bytes_per_s": 10.0 * b + a, "gap_s": None}
                answers[b][str(a)] = {"bytes_per_s": 10.0 * a + b, "gap_s": a + b}
        return answers

    one._ask = ask  # type: ignore[method-assign]
    found = one._latencies()
    assert found.least_s.tolist() == [[0, 1, 3], [1, 0, 4], [3, 4, 0]]
    assert found.spread_s.tolist() == [[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]]
    assert found.overhead_s == 2  # the median of 1, 2 and 3
    assert (one._trip_s == 2 * found.least_s).all()
    assert one._seen[1, 0] == [10.0] and one._seen[0, 1] == [1.0] and one._seen[2, 1] == [21.0]
    assert [tasks[0]["do"] for tasks in told] == ["pings", "guesses"]
    for rank in range(3):
        met = told[0][rank]["partners"]
        assert sorted([rank, *met]) == [0, 1, 2] and told[0][rank]["timeout_s"] == 20.0
        assert told[1][rank]["partners"] == [[peer, one._trip_s[rank, peer]] for peer in met]
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["hosts"] == ["a", "b", "c"] and kept["overhead_s"] == 2
    assert kept["latency_s"] == found.least_s.tolist()


def test_far_peers_alone_stream_beforehand(tmp_path: Path):
    one = leader(2, tmp_path)

    def ask(tasks, seconds):
        if tasks[0]["do"] == "streams":
            assert [task["partners"] for task in tasks.values()] == [[1], [0]]
            return {0: {"1": None}, 1: {"0": 0.25}}
        both = {"bytes_per_s": 5.0, "gap_s": None}
        return {0: {"1": both}, 1: {"0": both}}

    one._ask = ask  # type: ignore[method-assign]
    assert one._guesses([[(0, 1)]]) == 0.25


def test_how_long_it_is_said_to_take(tmp_path: Path):
    """Of 10 servers 23 slots are certain; 90 pairs may each have a link."""
    one = leader(10, tmp_path, slot_s=1.0)
    one._trip_s[:] = 0.1
    each = 1.1 + 5 * 0.2 + 4 * 0.03
    least = 23 * each + 10 * 16 * 0.2
    said = one._expected()
    assert f"measuring 10 servers takes about {least:.0f} s" in said
    assert f"up to {least + 90 * each:.0f} s" in said


def test_who_is_lost_is_named(clock: Clock, tmp_path: Path):
    one = leader(3, tmp_path)
    with pytest.raises(PeerError, match="rank 2: silent for 5 s"):
        one._complete({0: {}, 1: {}}, {}, {1, 2}, 5.0)
    with pytest.raises(PeerError, match="rank 1: broke"):
        one._complete({0: {}}, {1: PeerError(1, "broke")}, {1, 2}, 5.0)
    with pytest.raises(PeerError, match="rank 2: gone"):
        one._complete({0: {}, 1: {"error": "gone", "peer": 2}}, {}, {1}, 5.0)
    assert one._complete({0: [], 1: {"now": 1}}, {}, {1}, 5.0) == {0: [], 1: {"now": 1}}
    assert one.host_of(1) == ""
    one._hosts = ["a", "b", "c"]
    assert one.host_of(1) == " (b)"


def test_all_are_asked_and_the_leader_does_its_own_part(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path
):
    class AtOnce:
        def __init__(self, target, args, daemon) -> None:
            self.start = lambda: target(*args)
            self.join = waited.append

    waited: list[float] = []
    one, sent = leader(3, tmp_path), {}
    monkeypatch.setattr(session, "threading", SimpleNamespace(Thread=AtOnce))
    monkeypatch.setattr(session, "send_object", lambda _, task, rank, __: sent.update({rank: task}))
    monkeypatch.setattr(session, "receive_object", lambda _, rank, __: {"host": f"h{rank}"})
    hello = {"do": "hello"}
    answers = one._ask({rank: hello for rank in range(3)})
    assert sent == {1: hello, 2: hello} and set(one._asked_at) == {1, 2}
    assert answers[1] == {"host": "h1"} and set(answers) == {0, 1, 2}
    assert set(one._ask({2: hello}, seconds=3.0)) == {2}  # without its own
    assert waited == [20.0, 20.0, 23.0]
    one.end("why")
    assert sent == {1: {"do": "end", "why": "why"}, 2: {"do": "end", "why": "why"}}
    assert clock.slept == [0.15]


def test_clocks_are_compared_by_their_quickest_round_trip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    one, turn = leader(3, tmp_path), []

    def ask(tasks):
        assert tasks == {1: {"do": "clock"}, 2: {"do": "clock"}}
        turn.append(0)
        took = 2.0 if len(turn) == 2 else 6.0
        one._asked_at = {1: (10.0, 10.0 + took), 2: (20.0, 20.0 + 2 * took)}
        return {1: {"now": 15.0}, 2: {"now": 20.0}}

    monkeypatch.setattr(one, "_ask", ask)
    one._compare_clocks()
    # Halfway through the quickest one: 11 and 22 here.
    assert one._offset.tolist() == [0, 15 - 11, 20 - 22]
    assert one._trip_s.tolist() == [[0, 2, 4], [2, 0, 0], [4, 0, 0]]


def test_a_follower_does_its_part_until_the_end(monkeypatch: pytest.MonkeyPatch, clock: Clock):
    transport = SimpleNamespace(rank=1)
    asked = [
        {"do": "clock"},
        {"do": "pings", "partners": [0], "timeout_s": 3.0},
        {"do": "slots", "slots": [1]},
        {"do": "end", "why": ""},
    ]
    said: list = []
    script = iter(asked)
    monkeypatch.setattr(session, "receive_object", lambda *given: next(script))
    monkeypatch.setattr(session, "send_object", lambda _, value, rank, __: said.append(value))
    monkeypatch.setitem(session._MEETINGS, "pings", lambda _, *given: list(given))
    monkeypatch.setattr(session, "run_slots", lambda _, slots: slots)
    follow(transport, 5.0)  # type: ignore[arg-type]
    assert said == [{"now": 100.0}, [[0], 3.0], [1]]
    script = iter([{"do": "end", "why": "lost server 2"}])
    with pytest.raises(RunError, match="lost server 2"):
        follow(transport, 5.0)  # type: ignore[arg-type]

    def lost(*_):
        raise PeerError(2, "gone")

    monkeypatch.setattr(session, "run_slots", lost)
    script, said[:] = iter([asked[2], asked[3]]), []
    follow(transport, 5.0)  # type: ignore[arg-type]
    assert said == [{"error": "gone", "peer": 2}]
    monkeypatch.setattr(session, "receive_object", lost)
    with pytest.raises(RunError, match="lost server 0, which leads the measurement: gone"):
        follow(transport, 5.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [{"hosts": ["ä", "b"], "x": 1.5}, [[0.5, math.inf], [2.0, 3.0]]])
def test_objects_are_sent_with_their_length(value: dict | list):
    sent: list[np.ndarray] = []

    def receive(into, peer, channel):
        assert (peer, channel) == (3, "control")
        into[:] = sent.pop(0)
        return SimpleNamespace(wait=lambda _: None)

    def send(data, peer, channel):
        assert (peer, channel) == (3, "control")
        sent.append(data)
        return SimpleNamespace(wait=lambda _: None)

    transport = SimpleNamespace(send=send, receive=receive)
    send_object(transport, value, 3, 1.0)  # type: ignore[arg-type]
    assert [len(one) for one in sent] == [8, len(json.dumps(value))]
    assert receive_object(transport, 3, 1.0) == value  # type: ignore[arg-type]


def test_slots_and_silence_have_limits():
    for slot_s, timeout_s in ((0.01, 1e-9), (60.0, 1e9)):
        assert Terms(slot_s, timeout_s).slot_s == slot_s
    for slot_s, timeout_s in ((0.0099, 1.0), (60.1, 1.0), (1.0, 0.0), (1.0, float("inf"))):
        with pytest.raises(OptionError, match="slot" if timeout_s == 1.0 else "timeout"):
            Terms(slot_s, timeout_s)


def test_a_measurement_from_start_to_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Hosts, clocks, how long it takes, latencies, rates; the network is named by its hosts."""
    one, done = leader(2, tmp_path), []
    apart = 1e-3 * (1 - np.eye(2))

    def ask(tasks):
        assert tasks == {0: {"do": "hello"}, 1: {"do": "hello"}}
        return {1: {"host": "b"}, 0: {"host": "a"}}

    monkeypatch.setattr(one, "_ask", ask)
    monkeypatch.setattr(one, "_tell", lambda step: done.append(step.split()[0]))
    monkeypatch.setattr(one, "_compare_clocks", lambda: done.append("clocks"))
    monkeypatch.setattr(one, "_latencies", lambda: Latencies(apart, apart / 10, 0.0))
    monkeypatch.setattr(one, "_rates", lambda slots, _: [[Rate(9.0, (9.0,) * 3)] * 2] * len(slots))
    found = one.measure("net", lambda line: done.append(line.split()[0])).topology
    assert done == ["meeting", "clocks", "measuring", "pairs"]
    assert (found.name, found.labels) == ("net", ("a", "b"))
    assert found.bandwidth_bytes_per_s.tolist() == [9, 9]
