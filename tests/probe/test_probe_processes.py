"""Processes of a measurement: heard until all are done; what the first one writes."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradweave.common import lazy
from gradweave.errors import MissingExtraError, OptionError, RunError
from gradweave.probe import launch
from gradweave.probe.explore import Findings, _nothing
from gradweave.probe.infer import Latencies, inferred
from gradweave.probe.session import Terms
from gradweave.probe.traffic import Rate
from gradweave.probe.transport import PeerError
from gradweave.processes.children import Children
from tests.probe.test_probe_session import Clock


class Scripted(Children):
    """Processes that say what is written down; then time passes only while one listens."""

    def __init__(self, messages: list, status: int = 1) -> None:
        self.messages, self.ended, self.now = messages, status, 0.0
        self.processes = []

    def __call__(self, starts, log):
        self.starts = starts
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def __len__(self) -> int:
        return len(self.starts)

    def receive(self, patience_s: float):
        if self.messages:
            return self.messages.pop(0)
        self.now += max(patience_s, 0.0)
        return None

    def monotonic(self) -> float:
        return self.now

    def status(self, number: int) -> int:
        return self.ended


@pytest.mark.parametrize(
    ("messages", "status", "error"),
    [
        (
            [
                (1, {"done": 1}),
                (1, None),
                (0, {"doing": "x"}),
                (0, {"says": "y"}),
                (0, {"done": 1}),
            ],
            0,
            None,
        ),
        ([(1, {"error": "no"})], 1, "^no$"),
        ([], 1, "no process reported anything for 3600 s"),
        ([(1, None), (0, {"error": "lost server 1 (h)"})], 1, r"lost server 1 \(h\)$"),
        ([(1, None), (1, {"error": "mine"}), (0, None)], -9, "lost server 1: .*SIGKILL$"),
        ([(1, None)], 3, "lost server 1: .*: last words"),
        ([(0, {"done": 1}), (1, None)], 3, "lost server 1: "),
    ],
)
def test_processes_are_heard_until_all_are_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages, status, error
):
    (tmp_path / "log").write_text("first\nlast words\n")
    children = Scripted(list(messages), status)
    monkeypatch.setattr(launch, "Children", children)
    monkeypatch.setattr(launch, "time", children)
    told: list[str] = []
    starts = [(["a"], {}), (["b"], {})]

    def supervise() -> None:
        launch.supervise(starts, tmp_path / "log", told.append, told.append)  # type: ignore

    if error is None:
        supervise()
        assert told == ["x", "y"] and not children.messages
    else:
        with pytest.raises(RunError, match=error):
            supervise()


def test_what_an_engine_raises_is_told_in_one_line():
    for raised, said in [
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError: no message"),
        (PeerError(2, "gone"), "rank 2: gone"),
    ]:
        with pytest.raises(RunError) as told, launch.told_in_one_line():
            raise raised
        assert str(told.value) == said
    with pytest.raises(KeyboardInterrupt), launch.told_in_one_line():
        raise KeyboardInterrupt


def test_a_backend_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lazy, "is_there", lambda module: module != "torch")
    with pytest.raises(MissingExtraError, match="the backend torch"):
        launch.under_launcher("torch")


def test_what_the_first_process_writes_and_all_others_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    clock = Clock()
    pair = {(0, 1): Rate(100.0, (90.0, 100.0, 115.0)), (1, 0): Rate(50.0, (50.0, 50.0, 51.0))}
    apart = 1e-3 * (1 - np.eye(2))
    found = inferred(
        Findings((_nothing(0), _nothing(1)), pair, {}), Latencies(apart, apart / 10, 0.0), "ab", "n"
    )
    transport = SimpleNamespace(rank=0, size=2, library="none")

    def lead(given, record, name, terms, tell, say):
        assert given is transport and name == str(output)
        clock.now_s += 1.0
        tell("one")
        clock.now_s += 2.5
        tell("two")
        clock.now_s += 4.0
        say("x")
        record.latencies(["a", "b"], apart, apart, 0.0)
        return found

    monkeypatch.setattr(launch, "time", clock)
    monkeypatch.setattr(launch, "TorchTransport", lambda *_: transport)
    monkeypatch.setattr(launch, "lead", lead)
    output, told = tmp_path / "net.json", list[str]()

    def take_part():
        return launch.take_part(output, "torch", Terms(0.5), told.append, told.append)

    outcome = take_part()
    assert outcome is not None and outcome.measured is found and outcome.seconds == 7.5
    assert told == ["one", "two", "x"] and [path.name for path in tmp_path.iterdir()] == [
        "net.json"
    ]
    content = json.loads(output.read_text())
    how = content["graph"]["measured"]
    assert how["steps"] == [
        {"step": "starting", "seconds": 1.0}, {"step": "one", "seconds": 2.5},
        {"step": "two", "seconds": 4.0},
    ]  # fmt: skip
    assert (how["seconds"], how["library"], how["slot_s"]) == (7.5, "none", 0.5)
    spreads = [link["bandwidth_spread_bytes_per_s"] for link in content["links"]]
    assert spreads == [25, 1]
    assert [link["latency_spread_s"] for link in content["links"]] == pytest.approx([1e-4] * 2)
    followed: list = []
    monkeypatch.setattr(launch, "follow", lambda *given: followed.append(given))
    transport.rank = 1
    assert take_part() is None and followed[0][0] is transport
    transport.size = 1
    with pytest.raises(OptionError, match="at least 2 servers"):
        take_part()
