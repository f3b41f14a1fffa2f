"""The default objective of `solve`, and the objective that its bound and gap refer to."""

import json

import pytest

import gradweave as gw
from gradweave.bounds import Bound
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.cli.main import main
from gradweave.schedulers.solving.solve import DEFAULT_BYTES, default_objective
from gradweave.topology.formats.files import read

FIVE_HOSTS = """\
# switches: s1 s2
h1 s1 10Gbit/s 5us
h2 s1 10Gbit/s 5us
h3 s1 1Gbit/s 5us
h4 s2 25Gbit/s 5us
h5 s2 10Gbit/s 5us
s1 s2 10Gbit/s 5us
"""


@pytest.fixture(scope="module")
def five_hosts(tmp_path_factory):
    path = tmp_path_factory.mktemp("networks") / "five_hosts.edges"
    path.write_text(FIVE_HOSTS)
    return path


def test_python_answers_what_the_command_line_does(five_hosts, capsys):
    found = gw.solve(read(five_hosts), schedulers="ring,packed")  # the quickest
    with pytest.raises(SystemExit):
        main(["solve", str(five_hosts), "--scheduler", "ring,packed", "--json"])
    said = json.loads(capsys.readouterr().out)
    # 100 MB must leave h3 over its 1 Gbit/s: 800 ms, and some latency.
    assert found.objective == "seconds" and found.timing.gradient_bytes == DEFAULT_BYTES == 10**8
    assert 0.8 < found.timing.seconds < 0.803
    assert said["seconds"] == found.timing.seconds
    assert (found.bound, found.gap) == (found.timing.bound, found.timing.gap)
    assert isinstance(found.bound, SecondsBound) and 0 < found.gap < 0.004
    assert found.optimal is said["optimal"] is False


def test_bound_and_gap_refer_to_the_objective(five_hosts):
    options = {"gradient_bytes": 10**8, "schedulers": ["ring"]}
    in_rounds = gw.solve(str(five_hosts), objective="rounds", **options)
    # 8 rounds of 20 MB over h3's link: 1.28 s, 8 · 160 ms.
    assert isinstance(in_rounds.bound, Bound) and in_rounds.rounds == 8
    assert in_rounds.gap == 8 / in_rounds.bound.rounds - 1
    assert in_rounds.timing.seconds == pytest.approx(1.28, rel=1e-3)
    in_seconds = gw.solve(str(five_hosts), objective="seconds", **options)
    least = in_seconds.bound.seconds
    assert in_seconds.gap == pytest.approx(in_seconds.timing.seconds / least - 1)
    assert in_seconds.gap < 0.61 and not in_seconds.optimal


def test_the_default_objective_is_that_of_the_links_and_the_runtime(five_hosts):
    unequal, ring = read(five_hosts), gw.topology.ring(4)
    assert default_objective(unequal, "ideal") == "seconds"
    assert default_objective(unequal, "ideal", "all_gather") == "rounds"
    assert default_objective(ring, "ideal") == "rounds"
    assert default_objective(ring, "gloo") == "seconds"
    solution = gw.solve(ring)
    assert (solution.objective, solution.gap, solution.optimal) == ("rounds", 0.0, True)
