"""Predicted times of plans and of gloo's collectives, by hand, and the plans that are not tried."""

from pathlib import Path

import pytest

import gradweave as gw
from gradweave.schedulers import Ring
from gradweave.schedulers.solving.variants import split
from gradweave.schedulers.textbook.runtimes import Direct
from gradweave.schedules import Job, demand_of
from gradweave.simulator.runtime import Algorithm, Runtime

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

from gradweave.torch.calls import SizeClass  # noqa: E402
from gradweave.torch.plans import Sources  # noqa: E402
from gradweave.torch.predicted import own_seconds, plan_seconds  # noqa: E402
from gradweave.torch.settings import Settings  # noqa: E402

LINK = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=0.0, overhead_s=0.0)
NET = gw.topology.complete(4, link=LINK)
FREE = Runtime("gloo", own=(Algorithm(),))
"""A runtime whose messages cost only the time on their links."""
SIZE = 1 << 30
BYTE_S = SIZE / 1e9
"""Seconds of all bytes on one link."""


@pytest.mark.parametrize(
    ("of", "shares"),
    [
        (SizeClass("all_reduce", SIZE), 6 / 4),  # a ring: 2·3 steps of a quarter
        (SizeClass("reduce_scatter", SIZE), 6 / 4),  # an all-reduce, of which each keeps its part
        (SizeClass("all_gather", SIZE), 3 / 4),  # a ring: 3 steps of a quarter
        (SizeClass("all_to_all", SIZE), 1 / 4),  # each to each, every pair over a separate link
        (SizeClass("broadcast", SIZE, 2), 2.0),  # a binomial tree: two hops of the whole
    ],
)
def test_gloos_own(of: SizeClass, shares: float):
    assert own_seconds(NET, FREE, of) == pytest.approx(shares * BYTE_S)


def test_what_is_not_known():
    assert own_seconds(NET, FREE, SizeClass("reduce", SIZE, 0)) is None
    for of in (SizeClass("all_reduce", SIZE), SizeClass("all_to_all", SIZE)):
        assert own_seconds(NET, Runtime("gloo"), of) is None


def test_plans_at_other_sizes_than_they_were_made_for():
    ring = Ring().schedule(NET)
    assert plan_seconds(ring, FREE, SizeClass("all_reduce", SIZE)) == pytest.approx(1.5 * BYTE_S)
    for job, of, shares in (
        (Job("all_to_all", 64), SizeClass("all_to_all", SIZE), 1 / 4),
        (Job("broadcast", 64, root=0), SizeClass("broadcast", SIZE, 0), 1.0),
    ):
        plan = Direct().schedule(NET, demand_of(NET, [job]))
        assert plan_seconds(plan, FREE, of) == pytest.approx(shares * BYTE_S), job


def test_a_plan_of_many_messages_is_not_tried_where_they_cost_more_than_bytes(tmp_path: Path):
    """16 times as many messages as gloo's ring: 2 KiB lose, and 1 GiB are as fast."""
    path = tmp_path / "plan.json"
    split(Ring().schedule(gw.topology.complete(4)), 32).save(path)
    plans = Sources.read(Settings((path,), None, "gloo", tmp_path)).of_group(4)
    for size, tried in ((1 << 11, False), (1 << 14, False), (1 << 30, True)):
        of = SizeClass("all_reduce", size)
        plan = plans.find(of)
        assert plan is not None
        why = plans.hopeless(plan, of)
        assert (why is None) is tried, (size, why)
        assert tried or "predicted to take" in str(why)
