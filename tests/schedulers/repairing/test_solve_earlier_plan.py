"""`solve(jobs=…, start_from=…)`: reuse of an earlier plan, and refusals."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.schedulers import Chain, Direct, solve_demand
from gradweave.schedulers.repairing.earlier_plan import EarlierPlan
from gradweave.schedules import Job, demand_of
from gradweave.topology.faults import slowed, without_links
from gradweave.verifier import verify

NET = gw.topology.from_spec("leaf_spine:leaves=2,spines=2,servers_per_leaf=2")
JOBS = [Job("broadcast", 10**6, root=0), Job("all_to_all", 10**5, servers=[0, 2])]
BEFORE = solve_demand(NET, JOBS, strategies=[Direct()])


def after(net: gw.Topology, jobs: list[Job] = JOBS) -> gw.schedules.Schedule:
    """The rest of the earlier plan, verified."""
    return EarlierPlan.of(BEFORE).schedule(net, demand_of(net, jobs))


def test_no_plan_is_worse_than_the_one_it_starts_from(tmp_path):
    BEFORE.schedule.save(tmp_path / "before.json")
    for start in (BEFORE, BEFORE.schedule, tmp_path / "before.json"):
        found = solve_demand(NET, JOBS, strategies=[Chain()], start_from=start)
        assert found.seconds <= BEFORE.seconds
    assert found.schedule.scheduler.options["objective"] == "seconds"


def test_lost_and_slow_links_and_other_sizes_are_taken():
    between = ~NET.is_server[NET.source] & ~NET.is_server[NET.target]
    link = int(np.flatnonzero(between)[0])
    lost = int(NET.source[link]), int(NET.target[link])
    for changed in (without_links(NET, [lost]), slowed(NET, {lost: 0.5})):
        assert after(changed.topology).num_transfers == BEFORE.schedule.num_transfers
    larger = [Job("broadcast", 3 * 10**6, root=0), Job("all_to_all", 10**6, servers=[0, 2])]
    assert after(NET, larger).demanded.total_bytes == 4 * 10**6


def test_pieces_without_a_way_go_as_others_do_or_their_job_anew():
    ring = gw.topology.ring(4)
    jobs = [Job("broadcast", 10**6, root=0), Job("reduce", 10**6, root=1)]
    before = solve_demand(ring, jobs)
    broken = without_links(ring, [(0, 1)]).topology
    found = solve_demand(broken, jobs, strategies=[Direct()], start_from=before)
    first, refused = (one for one in found.attempts if not one.improved)
    assert first.seconds and refused.reason and verify(found.schedule).valid


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (gw.schedulers.Ring().schedule(gw.topology.ring(4)), "expected a plan of the same jobs"),
        (3, "expected a plan of the same jobs"),
        (solve_demand(NET, JOBS[:1], strategies=[Direct()]), "got a plan of broadcast, in 1 block"),
        (solve_demand("star:4", JOBS[:1], strategies=[Direct()]), "which has no"),
    ],
)
def test_what_is_no_plan_of_these_jobs_is_refused(start, expected):
    with pytest.raises(OptionError, match=f"start_from: .*{expected}"):
        gw.solve(NET, jobs=JOBS, start_from=start)


def test_a_plan_that_is_not_valid_is_no_plan():
    wrong = BEFORE.schedule.replace(op=1 - BEFORE.schedule.op)
    found = gw.solve(NET, jobs=JOBS, start_from=wrong, schedulers=[Direct()])
    assert "is no longer valid" in found.attempts[0].reason
    assert found.scheduler == Direct()
