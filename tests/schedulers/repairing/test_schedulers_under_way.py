"""Re-planning of schedules while they run."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.execute.reference import play
from gradweave.schedulers import Packed, replan
from gradweave.simulator import changed_seconds, event_seconds
from gradweave.topology.faults import slowed

SIZE = 1e9
LINK = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=0.0, overhead_s=0.0)


def half(network: gw.Topology, link: tuple[int, int] = (0, 1)) -> gw.Topology:
    return slowed(network, {link: 0.5}).topology


def test_links_that_stay_as_they_are_change_nothing() -> None:
    network = gw.topology.from_spec("mesh:2x3")
    schedule = gw.schedulers.Timed().schedule(network)
    for at_s in (0.0, 0.01, 10.0):
        played = changed_seconds(schedule, SIZE, network, at_s)
        np.testing.assert_allclose(played, event_seconds(schedule, SIZE), rtol=1e-9)


def test_before_the_start_and_after_the_end_it_is_the_one_network_or_the_other() -> None:
    network = gw.topology.ring(4)
    schedule = gw.schedulers.Ring().schedule(network)
    slow = schedule.replace(topology=half(network))
    after, before = (changed_seconds(schedule, SIZE, half(network), at) for at in (1e3, 0.0))
    np.testing.assert_allclose(after, event_seconds(schedule, SIZE))
    np.testing.assert_allclose(before, event_seconds(slow, SIZE))


def test_what_is_under_way_goes_on_at_the_new_rate() -> None:
    pair = gw.topology.complete(2, link=LINK)
    schedule = gw.schedulers.Ring().schedule(pair)  # 0.5 s each way for each stage
    _, end = changed_seconds(schedule, SIZE, half(pair), 0.25)
    # Half of the first stage is done; the rest takes twice its time, and so does the second stage.
    assert float(end.max()) == pytest.approx(0.25 + 0.5 + 1.0)


@pytest.mark.parametrize("spec", ["ring:6", "star:5", "mesh:2x3"])
def test_planned_anew_it_takes_less_and_what_had_begun_stays(spec: str) -> None:
    network = gw.topology.from_spec(spec)
    link = (int(network.source[0]), int(network.target[0]))
    before = Packed(gradient_bytes=SIZE, pieces=100).schedule(network)
    intact_s = gw.simulator.seconds(before, SIZE, "events")
    changed, at_s = half(network, link), 0.4 * intact_s
    after = replan(before, changed, SIZE, at_s)
    assert intact_s < after.seconds < after.as_before_s
    assert 0 < after.replanned_share < 0.7
    assert gw.verify(after.schedule).valid
    start, _ = event_seconds(before, SIZE)
    begun = int((start < at_s).sum())
    for name in ("source", "target", "op"):
        early = getattr(before, name)[start < at_s]
        assert np.array_equal(np.sort(early), np.sort(getattr(after.schedule, name)[:begun]))
    # Run from the start on the changed network, it is still an all-reduce of every element.
    gradients = np.random.default_rng(0).integers(0, 9, (network.num_servers, 10_007))
    assert (play(after.schedule, gradients) == gradients.sum(axis=0)).all()


def test_a_ring_whose_pieces_have_all_begun_ends_as_it_was() -> None:
    network = gw.topology.ring(4)
    schedule = gw.schedulers.Ring().schedule(network)
    after = replan(schedule, half(network), SIZE, 0.01)
    assert after.replanned_share == 0
    assert after.seconds == after.as_before_s


def test_a_link_that_changes_before_the_start_is_solved_anew() -> None:
    network = gw.topology.ring(4)
    schedule = gw.schedulers.Ring().schedule(network)
    after = replan(schedule, half(network), SIZE, 0.0)
    least = gw.bounds.least_seconds(half(network), SIZE).seconds
    assert after.replanned_share == 1
    assert least <= after.seconds < 1.05 * least


def test_places_in_the_gradient_stay() -> None:
    """Elements of a piece that stays are in that piece in the new schedule as well."""
    network = gw.topology.ring(5)
    before = Packed(gradient_bytes=SIZE, pieces=40).schedule(network)
    after = replan(before, half(network), SIZE, 0.03).schedule
    old, new = (np.cumsum(one.share) for one in (before, after))
    begun = np.unique(before.piece[event_seconds(before, SIZE)[0] < 0.03])
    distance = np.abs(new[:, None] - old[begun]).min(axis=0)
    assert distance.max() < 1e-6


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"at_s": -1.0}, "at_s: expected finite seconds"),
        ({"gradient_bytes": 0.0}, "gradient_bytes: expected a finite number above 0"),
        ({"changed": gw.topology.ring(4, link=LINK)}, "differs .* in more than bandwidths"),
        ({"changed": gw.topology.ring(5)}, "start_from: is a schedule of"),
        (
            {"changed": gw.topology.without_links(gw.topology.ring(4), [(0, 1)]).topology},
            "differs .* in more than bandwidths",
        ),
    ],
)
def test_bad_input(change: dict, line: str) -> None:
    network = gw.topology.ring(4)
    schedule = gw.schedulers.Ring().schedule(network)
    given = {"changed": half(network), "gradient_bytes": SIZE, "at_s": 0.1} | change
    with pytest.raises(OptionError, match=line):
        replan(schedule, **given)
    stage = gw.schedulers.Ring().schedule(network, collective="all_gather")
    with pytest.raises(OptionError, match="expected an all_reduce"):
        replan(stage, half(network), SIZE, 0.1)
