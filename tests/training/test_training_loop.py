"""The training loop, its pace and its log, with a state that only counts."""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("jax")

from gradweave.errors import FileError, MissingExtraError, NotFiniteError
from gradweave.processes.agreement import Processes
from gradweave.training.log import BOARD, LOG, Log, read_log
from gradweave.training.loop import Progress, Training
from gradweave.training.pace import Pace, duration


def count(progress: Progress[int], updates: int) -> tuple[int, str]:
    return progress.state + updates, f"{updates} more"


def run(training: Training[int], end: int, report=lambda *_: None, **options) -> None:
    settings = {"log": contextlib.nullcontext(), "pace": Pace(), "checkpoint_minutes": 1.0}
    training.run(end, count, report, **(settings | options))


def test_it_ends_at_its_last_update_which_is_written():
    written, reported = [], []
    training = Training(Progress(3, 3), written.append, Processes())
    run(training, 6, lambda progress, metrics: reported.append((progress.updates, metrics)))
    assert reported == [(4, "1 more"), (5, "1 more"), (6, "1 more")]
    assert written == [Progress(6, 6)]
    run(training, 6)
    assert written == [Progress(6, 6)]


def test_calls_grow_to_a_second_and_stop_at_the_end():
    reported, pace = [], Pace()
    pace.record(1, 60.0)
    pace.record(1, 0.1)
    training = Training(Progress(0, 0), lambda _: None, Processes())
    run(training, 25, lambda now, _: reported.append(now.updates), pace=pace, most_per_call=64)
    assert reported == [10, 20, 25]


def test_checkpoints_are_written_when_they_are_due():
    written = []
    run(Training(Progress(0, 0), written.append, Processes()), 3, checkpoint_minutes=0.0)
    assert [progress.updates for progress in written] == [1, 2, 3]


def test_ctrl_c_writes_what_is_not_written():
    written = []

    def interrupt(progress, _):
        if progress.updates == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Training(Progress(0, 0), written.append, Processes()), 5, interrupt)
    assert written == [Progress(2, 2)]


def test_a_state_that_is_not_finite_is_not_written_but_the_one_before():
    written = []

    def diverge(progress, updates):
        if progress.updates == 2:
            raise NotFiniteError("parameters hold a NaN")
        return count(progress, updates)

    training = Training(Progress(0, 0), written.append, Processes())
    settings = {"log": contextlib.nullcontext(), "pace": Pace(), "checkpoint_minutes": 1.0}
    with pytest.raises(NotFiniteError):
        training.run(5, diverge, lambda *_: None, **settings)
    assert written == [Progress(2, 2)]


def test_what_only_other_processes_end_by_is_not_written():
    """Of several processes, one that is interrupted for itself cannot gather the state."""

    class Several(Processes):
        def __init__(self):
            pass

        @property
        def alone(self):
            return False

        def by_first(self, work):
            return work()

        def turn(self, updates, *, save):
            raise KeyboardInterrupt

    written = []
    training = Training(Progress(0, 0), written.append, Several())
    training.progress = Progress(1, 1)
    with pytest.raises(KeyboardInterrupt):
        run(training, 5)
    assert written == []


def test_the_pace_leaves_out_calls_that_compile():
    pace = Pace()
    for seconds, program in ((60.0, "one"), (80.0, "two"), (2.0, "one"), (4.0, "two")):
        pace.record(1, seconds, program)
    assert pace.seconds_per_update == 3.0 and pace.updates_per_s == 1 / 3
    lately = Pace(window=1)
    for seconds in (60.0, 8.0, 2.0):
        lately.record(4, seconds)
    assert lately.seconds_per_update == 0.5 and lately.updates_per_s == 0.8
    compiling = Pace()
    compiling.record(2, 60.0)
    assert compiling.seconds_per_update == 30.0 and compiling.updates_per_s is None


def test_a_log_continues_after_the_update_that_is_resumed_from(tmp_path):
    pytest.importorskip("tensorboardX")
    with Log(tmp_path, 0, 0) as log:
        log.write({"update": update} for update in (1, 2, 3))
        log.plot("return", 1.0, 3)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"update": 4, "ret')
    assert [row["update"] for row in read_log(tmp_path)] == [1, 2, 3]
    with Log(tmp_path, 2, 2) as log:
        log.write([{"update": 3, "again": True}])
    assert read_log(tmp_path) == [{"update": 1}, {"update": 2}, {"update": 3, "again": True}]
    assert read_log(tmp_path / "nowhere") == []


def test_a_curve_has_no_points_that_are_not_finite(tmp_path, monkeypatch):
    points = []
    board = SimpleNamespace(add_scalar=lambda *point: points.append(point), close=lambda: None)
    monkeypatch.setattr("gradweave.training.log.Curves", lambda *_, **__: board)
    with Log(tmp_path, 0, 0) as log:
        for step, value in enumerate((1.0, float("nan"), float("inf"), 2.0)):
            log.plot("return", value, step)
    assert points == [("return", 1.0, 0), ("return", 2.0, 3)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
@pytest.mark.parametrize("full", ["log", "curves"])
def test_a_full_disk_ends_a_training_in_one_line_with_its_checkpoint(tmp_path, monkeypatch, full):
    """TensorBoard's own writer would wait for its dead thread, and not even hear Ctrl-C."""
    pytest.importorskip("tensorboardX")
    if full == "curves":
        device = "tensorboardX.record_writer.open_file"
        monkeypatch.setattr(device, lambda _: Path("/dev/full").open("wb"))
    else:
        device = "gradweave.training.log.reopened"
        monkeypatch.setattr(device, lambda *_: Path("/dev/full").open("w"))
    log, written = Log(tmp_path, 0, 0), []

    def report(progress, _):
        if progress.updates > 2:
            log.write([{"update": progress.updates}])
            for point in range(500):
                log.plot("return", 1.0, point)

    training = Training(Progress(0, 0), written.append, Processes())
    with pytest.raises(FileError, match="log cannot be written: No space left on device") as told:
        run(training, 9, report, log=log)
    assert "\n" not in str(told.value) and str(tmp_path) in str(told.value)
    assert written == [Progress(3, 3)]


def test_curves_are_events_that_tensorboard_reads(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    with Log(tmp_path, updates=2, step=20) as log:
        log.plot("returns/a", 0.5, 30)
    (file,) = (tmp_path / BOARD).iterdir()
    raw, events = file.read_bytes(), []
    while raw:  # length, its checksum, the event, its checksum
        length = int.from_bytes(raw[:8], "little")
        events.append(Event.FromString(raw[12 : 12 + length]))
        raw = raw[16 + length :]
    assert [event.step for event in events] == [0, 21, 30]
    assert events[1].session_log.status == 1  # begins: later events of earlier files are hidden
    (value,) = events[2].summary.value
    assert (value.tag, value.simple_value) == ("returns/a", 0.5)


def test_durations_in_words():
    said = {89.4: "89 s", 90: "2 min", 5399: "90 min", 5400: "1.5 h"}
    assert {seconds: duration(seconds) for seconds in said} == said


def test_a_resumed_log_keeps_the_event_of_its_last_update(tmp_path, monkeypatch):
    """Events from `purge_step` on go: those of the updates that are made again."""
    opened = {}

    class Board:
        def __init__(self, folder: Path, purge_step: int) -> None:
            opened[folder] = purge_step

        def close(self) -> None:
            pass

    monkeypatch.setattr("gradweave.training.log.Curves", Board)
    with Log(tmp_path, updates=3, step=30):
        pass
    assert opened == {tmp_path / BOARD: 31}


def test_a_resumed_log_goes_on_with_its_run_of_weights_and_biases_on_this_machine(
    tmp_path, monkeypatch
):
    pytest.importorskip("tensorboardX")
    begun, told = [], []

    def init(**given):
        begun.append((given["project"], given["id"], given["mode"]))
        return SimpleNamespace(
            log=lambda values, step: told.append((values, step)), finish=lambda: told.append("end")
        )

    fake = SimpleNamespace(init=init, Settings=lambda **_: None)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr("gradweave.common.lazy.is_there", lambda module: True)
    for step in (1, 2):
        with Log(tmp_path, step - 1, step - 1, "mine") as log:
            log.plot("return", 0.5, step)
    assert begun[0] == begun[1] and begun[0][::2] == ("mine", "offline")
    assert told == [({"return": 0.5}, 1), "end", ({"return": 0.5}, 2), "end"]
    monkeypatch.setattr("gradweave.common.lazy.is_there", lambda module: False)
    with pytest.raises(MissingExtraError, match="pip install wandb"), Log(tmp_path, 0, 0, "mine"):
        pass
