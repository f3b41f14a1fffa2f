"""A small network of namespaces, links and processes on this machine; needs root."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradweave as gw
from gradweave.cli.commands import lab as lab_verb
from gradweave.errors import InputWarning, LostServerError, OptionError, RunError
from gradweave.lab import measure as lab
from gradweave.lab import network as emulation
from gradweave.lab.emulation import Emulation, _Transfer, measure_links
from gradweave.lab.forwarding import Paths
from gradweave.lab.jobs import measure_jobs
from gradweave.schedulers import solve_demand
from gradweave.schedulers.spec import from_spec
from gradweave.schedulers.textbook.runtimes import Direct
from gradweave.schedules import Job, Schedule
from gradweave.topology.faults import slowed
from tests.patience import PATIENCE_S


def namespaces(process: int | None = None) -> list[str]:
    """Those that a process made; this one if none is named. Other tests may run meanwhile."""
    from pyroute2 import netns

    prefix = f"{emulation.PREFIX}{process or os.getpid()}-"
    return [name for name in netns.listnetns() if name.startswith(prefix)]


def slow_links(spec: str) -> gw.Topology:
    return lab.emulated(gw.topology.from_spec(spec), bandwidth_bytes_per_s=12.5e6, latency_s=0.0)


def needs_root() -> str | None:
    if os.geteuid() != 0:
        return "a lab needs root"
    try:
        with emulation.EmulatedNetwork(slow_links("complete:2")):
            return None
    except (OptionError, RunError) as error:
        return f"no network can be emulated here: {error}"


WHY_NOT = needs_root()
emulated = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
NO_TUN = None if Path("/dev/net/tun").exists() else "no TAP devices here"
delayed = pytest.mark.skipif(bool(WHY_NOT or NO_TUN), reason=str(WHY_NOT or NO_TUN))
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # A machine that is busy with other tests emulates worse.
    pytest.mark.filterwarnings("ignore:.*(is the machine busy|no netem, so that|loaded at once)"),
]


@pytest.fixture(scope="module")
def measured():
    """Three schedules and the backend's own all-reduce."""
    topology = slow_links("jellyfish:switches=5,degree=3,servers_per_switch=1,seed=1")
    contenders = [
        (name, gw.solve(topology, schedulers=name).schedule)
        for name in ("portfolio", "ring", "central_parameter_server")
    ]
    return lab.measure(
        topology, [*contenders, ("gloo", None)], gradient_bytes=[1_000_000], repetitions=3
    ).measurements


@emulated
def test_all_results_are_right(measured):
    assert [one.name for one in measured] == [
        "portfolio",
        "ring",
        "central_parameter_server",
        "gloo",
    ]
    assert all(one.correct for one in measured)


@emulated
def test_messages_to_one_server_take_the_route_of_their_source():
    """Servers 0 and 1 at switch 3, from which switches 4 and 5 lead to server 2."""
    links = [(0, 3), (1, 3), (3, 4), (3, 5), (4, 2), (5, 2)]
    fork = gw.Topology.from_links("fork", servers=3, switches=3, links=links)
    fork = lab.emulated(fork, bandwidth_bytes_per_s=12.5e6, latency_s=0.0)
    with emulation.EmulatedNetwork(fork) as network:
        for switches in ((4, 5), (5, 4)):
            routes = {(0, source, 2): (source, 3, switches[source], 2) for source in (0, 1)}
            network.route(Paths(np.zeros(0, np.int64), 1, routes, frozenset()))
            for source in (0, 1):
                used = links_of_one_message(network, source, 2)
                assert used == {(source, 3), (3, switches[source]), (switches[source], 2)}


def links_of_one_message(
    network: emulation.EmulatedNetwork, source: int, target: int
) -> set[tuple[int, int]]:
    topology, size = network.topology, 1000
    before = network.sent_bytes()
    with network.inside(source), socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.bind((network.address(0, source), 0))
        sender.sendto(bytes(size), (network.address(0, target), 9))
    wait_for(lambda: ((network.sent_bytes() - before)[topology.target == target] > size).any())
    used = np.flatnonzero(network.sent_bytes() - before > size)
    return set(zip(topology.source[used].tolist(), topology.target[used].tolist(), strict=True))


@emulated
def test_a_lab_forks_nothing():
    """Whoever calls it may have JAX's threads running, which a fork can leave locked."""
    program = (
        "import os\n"
        "os.register_at_fork(before=lambda: print('forked'))\n"
        "from gradweave.lab.network import EmulatedNetwork\n"
        "from gradweave import topology\n"
        "with EmulatedNetwork(topology.from_spec('complete:3,bandwidth=100Mbit/s')) as network:\n"
        "    network.sent_bytes()\n"
        "    print('made')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert result.stdout == "made\n", result.stderr


@emulated
def test_jobs_beside_gloos_own():
    topology = slow_links("complete:2")
    jobs = [
        Job("all_to_all", [[0, 400], [800, 0]]),
        Job("all_reduce", 4000),
        Job("broadcast", 400, root=1),
        Job("all_gather", 800),
        Job("reduce_scatter", 800),
    ]
    plan = solve_demand(topology, jobs, strategies=[Direct()]).schedule
    found = measure_jobs(topology, jobs, [("plan", plan)], repetitions=1)
    by_plan, own = found.measurements
    assert by_plan.correct and own.correct and own.schedule is None
    data = by_plan.predicted_link_bytes
    assert data is not None and data.sum() == sum(by_plan.sent_bytes) > 1200 + 4000
    assert by_plan.predicted_s is not None and (by_plan.link_bytes >= data).all()


def test_jobs_that_a_lab_does_not_measure_are_refused():
    topology = slow_links("complete:2")
    for job, says in (
        (Job("all_reduce", 6), "got one of 6 bytes"),
        (Job("gather", 800, root=0), "gather: a lab knows only gloo's own all_reduce, "),
        (Job("all_gather", 800, [1, 0]), "all_gather: expected servers in ascending order"),
    ):
        with pytest.raises(OptionError, match=says):
            measure_jobs(topology, [job], [])
    jobs = [Job("all_reduce", 8)]
    other = solve_demand(topology, [Job("all_reduce", 80)], strategies=[Direct()]).schedule
    with pytest.raises(OptionError, match="plan: is a plan of all_reduce, 80 bytes; expected"):
        measure_jobs(topology, jobs, [("plan", other)])


@emulated
def test_links_are_as_slow_as_asked_for(measured):
    # Other work may slow processes down; nothing can make a link faster than it is.
    for one in measured[:3]:
        assert one.ratio is not None and 0.9 < one.ratio < 10, one.name


@emulated
def test_the_kernel_counts_what_is_predicted_on_each_link(measured):
    for one in measured[:3]:
        data = one.predicted_link_bytes
        assert data is not None
        used = data > 0
        # Headers: 66 bytes in 9,014. Acknowledgements and announcements go the other way.
        assert (one.link_bytes[used] >= data[used]).all()
        assert one.link_bytes.sum() <= 1.05 * data.sum()
        assert one.link_bytes[~used].sum() <= 0.02 * data.sum()


@emulated
def test_bytes_counted_by_the_executors(measured):
    portfolio, ring, central, _ = measured
    servers, size = 5, ring.gradient_bytes
    assert ring.sent_bytes == [2 * (servers - 1) * size // servers] * servers
    assert sum(portfolio.sent_bytes) == sum(ring.sent_bytes)
    # The server receives from all others, and sends to all others, the whole gradient.
    assert max(central.sent_bytes) == (servers - 1) * size
    assert sum(central.sent_bytes) == 2 * (servers - 1) * size


@emulated
def test_nothing_stays(measured):
    assert namespaces() == []


@emulated
def test_a_server_that_dies_is_named_and_nothing_stays():
    topology = slow_links("ring:4")
    schedule = from_spec("ring").schedule(topology)
    with pytest.raises(LostServerError, match=r"server 2 .*SIGKILL") as caught:
        with lab.laboratory(topology) as laboratory:
            processes = laboratory.servers.processes
            laboratory.connect(schedule, 5_000_000)
            threading.Timer(0.5, processes[2].kill).start()
            laboratory.run()
    assert caught.value.server == 2
    # Each of the others ended by itself, with the error that names the lost one.
    assert [process.returncode for process in processes] == [1, 1, -signal.SIGKILL, 1]
    assert namespaces() == []


@emulated
@pytest.mark.parametrize(
    ("latency", "number", "status"),
    [
        ("0", signal.SIGINT, 130),
        pytest.param("20ms", signal.SIGINT, 130, marks=delayed),
        ("0", signal.SIGTERM, 143),
        pytest.param("20ms", signal.SIGKILL, -9, marks=delayed),
    ],
)
def test_an_ended_lab_leaves_nothing(latency, number, status):
    # So little bandwidth that a busy machine carries it as well.
    slow = "--bandwidth", "20Mbit/s", "--latency", latency
    process = start("lab", "ring:4", "--repetitions", "10000", *slow)
    wait_for(lambda: len(namespaces(process.pid)) == 4, process)
    # A server each, and the one that clears up where the lab itself cannot.
    wait_for(lambda: len(children_of(process.pid)) >= 5, process)
    time.sleep(1)  # so that they are at it, or still connecting
    children = children_of(process.pid)
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status
    if number == signal.SIGINT:
        assert said.strip().splitlines()[-1] == "gradweave: interrupted"
    if number == signal.SIGKILL:
        wait_for(lambda: not any(map(alive, children)))
    assert namespaces(process.pid) == []
    assert not any(map(alive, children))


@emulated
def test_namespaces_of_who_is_gone_are_cleared_and_others_left_alone():
    from pyroute2 import netns

    gone = subprocess.Popen(["true"])
    gone.wait()
    left, foreign = f"{emulation.PREFIX}{gone.pid}-0", "gradweave-of-somebody-else"
    emulation._create(left)
    emulation._create(foreign)
    try:
        emulation.clear_leftovers()  # or another test's lab was quicker
        assert namespaces(gone.pid) == []
        assert foreign in netns.listnetns()
    finally:
        netns.remove(foreign)


@emulated
def test_the_verb_writes_table_figures_and_chart(tmp_path):
    output = tmp_path / "lab.json"
    process = start(
        *("lab", "complete:2", "--scheduler", "ring", "--size", "100000"),
        *("--repetitions", "2", "--output", str(output), "--json"),
    )
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    found = json.loads(printed)
    assert found == json.loads(output.read_text())
    assert (tmp_path / "lab.png").read_bytes().startswith(b"\x89PNG")
    (one,) = found["measurements"]
    assert one["correct"] and len(one["runs_s"]) == 2
    assert np.array(one["link_bytes"]).shape == (2,)


@delayed
def test_a_latency_of_20_ms_is_emulated_and_measured():
    with lab.laboratory(far_apart()) as laboratory:
        emulation, children = laboratory.emulation, children_of(os.getpid())
        assert emulation.delays in ("netem", "delay line")
        # No packet comes early; a busy machine may be late.
        assert (emulation.round_trip_s >= 0.04).all()
        assert (emulation.round_trip_s < 0.05).all()
        assert (0.5 < emulation.throughput).all() and (emulation.throughput < 1.05).all()
        one = laboratory.measure("ring", ring_of(far_apart()), 4000, 2, lambda _: None)
    assert min(one.runs_s) >= 2 * 0.02  # to be summed, and back
    assert namespaces() == [] and not any(map(alive, children))


@delayed
def test_latencies_differ_by_direction_and_link():
    topology = slow_links("ring:3")
    latency_s = np.where(topology.source == 0, 0.03, np.where(topology.target == 0, 0.005, 0.0))
    topology = dataclasses.replace(topology, latency_s=latency_s)
    with emulation.EmulatedNetwork(topology) as network:
        found = measure_links(network)
    expected = np.where((topology.source == 0) | (topology.target == 0), 0.035, 0.0)
    assert found.asked_round_trip_s == pytest.approx(expected)
    assert found.round_trip_s == pytest.approx(expected, abs=0.005)


@delayed
def test_a_lost_delay_line_is_said_and_nothing_stays():
    slow = far_apart(2.5e6)  # which a busy machine carries too
    with pytest.raises(RunError, match=r"delay line and its links are lost.*SIGKILL"):
        with lab.laboratory(slow) as laboratory:
            line = laboratory.network._delay_line
            if line is None:
                pytest.skip("this kernel has netem")
            children = children_of(os.getpid())
            laboratory.connect(ring_of(slow), 1_000_000)
            os.kill(line.process, signal.SIGKILL)
            laboratory.run()
    assert namespaces() == [] and not any(map(alive, children))


@emulated
def test_latencies_without_netem_and_devices_are_refused(monkeypatch):
    monkeypatch.setattr(emulation, "has_netem", lambda _: False)
    monkeypatch.setattr(emulation, "_to", lambda _: "a/b")  # no device may be named so
    with pytest.raises(OptionError, match=r"no netem.*latency of 0"):
        with emulation.EmulatedNetwork(far_apart()):
            pass
    assert namespaces() == []


def test_what_is_not_emulated_is_refused_or_warned_of():
    topology, full = far_apart(), np.full(2, 12.5e6)
    near = Emulation(
        delays="delay line",
        window_bytes=1 << 18,
        of_links=2,
        links=np.arange(2),
        asked_round_trip_s=np.full(2, 0.04),
        round_trip_s=np.full(2, 0.041),
        asked_bytes_per_s=full,
        together_bytes_per_s=0.99 * full,
        alone_bytes_per_s=np.full(2, np.nan),
    )
    near.check(topology)
    late = dataclasses.replace(near, round_trip_s=np.array([0.041, 0.06]))
    with pytest.raises(OptionError, match=r"1→0 was asked for round trips of 40 ms .* has 60 ms"):
        late.check(topology)
    # A busy machine is no reason to refuse a link without a latency.
    with pytest.warns(InputWarning, match="busy"):
        dataclasses.replace(
            near, asked_round_trip_s=np.full(2, 2e-6), round_trip_s=np.array([1e-4, 0.1])
        ).check(topology)
    slow = np.array([np.nan, 0.5])
    with pytest.raises(OptionError, match=r"1→0 .* 100 Mbit/s of data, and has .* 50 Mbit/s"):
        dataclasses.replace(
            near, together_bytes_per_s=0.4 * full, alone_bytes_per_s=slow * full
        ).check(topology)
    somewhat = dataclasses.replace(near, round_trip_s=np.array([0.041, 0.046]))
    with pytest.warns(InputWarning, match="this kernel has no netem, so a process") as said:
        somewhat.check(topology)
    assert "busy" not in str(said[0].message)
    with pytest.warns(InputWarning, match="is the machine busy"):
        dataclasses.replace(somewhat, delays="netem").check(topology)
    with pytest.warns(InputWarning, match="at once carry 60% of what was asked for, 200 Mbit/s"):
        dataclasses.replace(near, together_bytes_per_s=0.6 * full, alone_bytes_per_s=full).check(
            topology
        )


def test_without_root_it_says_so(monkeypatch):
    for user in (1, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(OptionError, match="root"):
            emulation.EmulatedNetwork(slow_links("complete:2"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    emulation.EmulatedNetwork(slow_links("complete:2"))  # nothing is made before it is entered


def test_who_is_woken_for_nothing_has_received_nothing():
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.setblocking(False)
        receiver.setblocking(False)
        transfer = _Transfer([(sender, receiver)], [100], growth_s=0, seconds=0, patience_s=0)
        transfer._send(0)
        assert [(transfer._receive(0), *transfer._under_way) for _ in range(2)] == [
            (100, 0),
            (0, 0),
        ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense:4"], "nonsense"),
        (["ring:4", "--size", "many"], "size 'many'"),
        (["ring:4", "--bandwidth", "fast"], "fast"),
        (["ring:4", "--scheduler", "nonsense"], "nonsense"),
        (["ring:4", "--output", "lab.txt"], ".json or .png"),
        (["ring:4", "--job", "all_to_all:bytes=16", "--size", "1MB"], "expected no --job with it"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(arguments, says):
    process = start("lab", *arguments)
    printed, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert printed == ""
    assert says in said and len(said.strip().splitlines()) == 1


def test_an_experiment_that_would_time_out_is_refused_before_it_starts():
    crawling = lab.emulated(gw.topology.ring(4), bandwidth_bytes_per_s=100, latency_s=0)
    ring = from_spec("ring").schedule(crawling)
    with pytest.raises(OptionError, match="repetitions: expected at least 1, got 0"):
        lab.measure(crawling, [("ring", ring)], gradient_bytes=[1_000_000], repetitions=0)
    for contender in (("ring", ring), ("gloo", None)):
        with pytest.raises(
            OptionError, match=r"1 MB: a run is predicted to take 15,030 s, .* 300 s"
        ):
            lab.measure(crawling, [contender], gradient_bytes=[4, 1_000_000])
    usual = from_spec("ring").schedule(slow_links("ring:4"))
    lab.check_time(slow_links("ring:4"), [("ring", usual), ("gloo", None)], [1_000_000], 5)
    with pytest.warns(InputWarning, match=r"all runs together are predicted to take 4\d minutes"):
        lab.check_time(slow_links("ring:4"), [("gloo", None)], [1_000_000], 20_000)


def test_each_step_is_told_as_it_begins(monkeypatch):
    """Of the backend's own all-reduce, by processes that only answer."""
    topology, told = slow_links("complete:2"), list[str]()
    network: Any = SimpleNamespace(topology=topology)
    processes: Any = SimpleNamespace(ask=lambda _: told.append("asked"))
    unmeasured: Any = None
    answering = lab.Laboratory(network, processes, Path(), unmeasured)
    monkeypatch.setattr(answering, "connect", lambda *_: True)

    def run() -> lab.Run:
        told.append("runs")
        return lab.Run(len(told), [4, 4], np.zeros(2, np.int64))

    monkeypatch.setattr(answering, "run", run)
    one = answering.measure("gloo", None, 1_000_000, 2, told.append)
    assert told == [
        "gloo, 1 MB: connecting",
        *("gloo, 1 MB: run 1 of 2", "runs", "gloo, 1 MB: run 2 of 2", "runs"),
        "asked",  # to finish
    ]
    assert one.runs_s == [3, 5] and one.sent_bytes == [4, 4] and one.link_bytes.tolist() == [0, 0]


def test_a_schedule_for_another_network_is_refused(tmp_path):
    file = tmp_path / "ring.json"
    from_spec("ring").schedule(gw.topology.from_spec("ring:5")).save(file)
    process = start("lab", "ring:4", "--scheduler", "ring", "--schedule", str(file))
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "ring" in said and "expected one for" in said


def test_the_longest_latency_is_of_the_route_of_most_seconds():
    """A line of four servers and three links of 1, 2 and 4 ms: 7 ms from end to end."""
    line = gw.Topology.from_links("line", servers=4, switches=0, links=[(0, 1), (1, 2), (2, 3)])
    ends = np.minimum(line.source, line.target)
    line = dataclasses.replace(line, latency_s=np.array([1e-3, 2e-3, 4e-3])[ends])
    assert lab._longest_latency_s(line) == pytest.approx(7e-3)


def far_apart(bandwidth_bytes_per_s: float = 12.5e6) -> gw.Topology:
    pair = gw.topology.complete(2)
    return lab.emulated(pair, bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=0.02)


def ring_of(topology: gw.Topology) -> gw.Schedule:
    return from_spec("ring").schedule(topology)


def children_of(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def start(*arguments: str) -> subprocess.Popen[str]:
    if WHY_NOT is not None and arguments[0] == "lab":
        pytest.skip(str(WHY_NOT))
    process = subprocess.Popen(
        [sys.executable, "-m", "gradweave", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    return process


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_outlives_a_failed_test() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().kill()


def wait_for(condition, process: subprocess.Popen | None = None) -> None:
    """Waits until something is so, of a process that is to live until then."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def test_unequal_links_are_planned_for_each_size_and_for_gloo():
    """Where gloo's own is the answer, that is what runs."""
    equal = lab_verb._Wanted(slow_links("ring:4"), None, None, (4_000, 64_000_000), 0)
    assert isinstance(equal.schedules("portfolio"), Schedule)
    wanted = dataclasses.replace(equal, topology=slowed(equal.topology, {(0, 1): 0.25}).topology)
    found = wanted.schedules("portfolio")
    assert isinstance(found, dict)
    small, large = found.values()
    assert large is not None and (small is None or small.pieces < large.pieces)
    for_rounds = dataclasses.replace(wanted, objective="rounds")
    assert isinstance(for_rounds.schedules("portfolio"), Schedule)


@emulated
def test_a_link_lets_through_what_it_is_told_to():
    topology = slow_links("complete:2")
    with emulation.EmulatedNetwork(topology) as network:

        def rates() -> list[int]:
            """As tbf has them, of the links from 0 to 1 and from 1 to 0."""
            found = []
            for node in network._namespaces:
                (queue,) = [one for one in node.get_qdiscs() if one.get_attr("TCA_KIND") == "tbf"]
                parameters = queue.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")
                found.append(parameters["rate"])
            return found

        before = rates()
        network.limit(int(topology.find_links([1], [0])[0]), 1e6)
        assert rates() == [before[0], 1_000_000] and before == [12_500_000] * 2
