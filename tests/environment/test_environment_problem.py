"""Instances and sizes: what they hold, and how they say what is wrong."""

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")

import gradweave as gw
from gradweave.environment import SchedulingEnvironment, Size, stack
from gradweave.environment.problem import Instance, Problem
from gradweave.errors import OptionError, ScheduleError
from tests.environment.episodes import SMALL, padded
from tests.environment.networks import SETTINGS, SMALL_NETWORKS, instance, network


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collective": "broadcast"}, "collective: expected one of .*all_gather.*'broadcast'"),
        ({"trees": "chosen"}, "trees: expected one of fixed, even, grown, got 'chosen'"),
        ({"overlap": True}, "overlap: only an all-reduce on fixed trees"),
        ({"overlap": True, "collective": "all_reduce"}, "overlap: only an all-reduce on fixed"),
        ({"overlap": True, "trees": "fixed"}, "overlap: only an all-reduce on fixed trees"),
    ],
)
def test_options_that_make_no_instance(options: dict, message: str):
    with pytest.raises(OptionError, match=message):
        Instance(network("ring:5"), **options)


@pytest.mark.parametrize("axis", ["servers", "trees", "hops", "links", "route"])
def test_an_axis_that_is_too_short_is_named(axis: str):
    tried = instance("bcube:n=2,k=1")
    wanted = getattr(tried.size, axis)
    lengths = {name: getattr(tried.size, name) for name in Size.__dataclass_fields__}
    short = Size(**{**lengths, axis: wanted - 1})
    expected = f"size: '.*' needs {axis} of {wanted} or more, got {wanted - 1}"
    with pytest.raises(OptionError, match=expected):
        Problem.of(tried, short)


def test_problems_of_several_sizes_do_not_stack():
    problems = [Problem.of(instance("ring:5")), Problem.of(instance("star:4"))]
    with pytest.raises(OptionError, match="stack: expected problems of one size, got 2"):
        stack(problems)
    with pytest.raises(OptionError, match="stack: expected problems of one size, got 0"):
        stack([])


def test_an_unfinished_episode_is_no_schedule():
    tried = instance("ring:5")
    state = SchedulingEnvironment().reset(Problem.of(tried))
    with pytest.raises(ScheduleError, match="not finished: 20 transfers were never sent"):
        tried.schedule(state.sent_round, state.sent_hop)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_a_problem_has_the_size_of_its_instance_and_no_transfers_in_padding(
    name: str, setting: str
):
    tried = instance(name, setting)
    if SMALL_NETWORKS.index(name) % len(SETTINGS) == [*SETTINGS].index(setting):
        assert Problem.of(tried).size == tried.size  # for each size programs are compiled
    problem = padded(tried)
    assert problem.size == SMALL
    servers, stages = tried.topology.num_servers, len(tried.stages)
    assert float(problem.trees) == servers * stages
    assert float(problem.workloads) == servers * stages * (servers - 1)
    size = tried.size
    assert not np.asarray(problem.pending)[size.servers :].any()
    assert not np.asarray(problem.pending)[:, size.trees :].any()
    assert not np.asarray(problem.allowed)[size.hops :].any()
    assert not np.asarray(problem.allowed)[:, size.trees :].any()


def test_a_covering_size_holds_each():
    sizes = [instance(name).size for name in SMALL_NETWORKS]
    covering = Size.covering(sizes)
    for name in SMALL_NETWORKS:
        assert Problem.of(instance(name), covering).size == covering
    rounded = Size.covering(sizes, multiple=8)
    assert [rounded.servers % 8, rounded.trees % 8, rounded.hops % 8, rounded.links % 8] == [0] * 4
    assert rounded.route == covering.route


@pytest.mark.parametrize("trees", ["fixed", "grown"])
def test_bounds_are_those_of_the_stages(trees: str):
    net = network("bcube:n=3,k=1")
    one = Instance(net, "all_gather", trees)
    both = Instance(net, "all_reduce", trees)
    alone = (
        gw.bounds.fixed_trees(one.flow_trees, "all_gather")
        if trees == "fixed"
        else gw.bounds.free_trees(net, "all_gather")
    )
    assert one.bound == alone.rounds
    assert both.bound == sum(both.bounds)
    assert both.bounds[1] == one.bound


@pytest.mark.parametrize("setting", ["grown all_reduce", "fixed all_reduce"])
def test_hops_are_alike_by_which_the_same_transfers_can_be_made(setting: str):
    """With fixed trees none are, as each transfer has its hop."""
    problem = Problem.of(instance("ring:5", setting))
    receiver, allowed = np.asarray(problem.receiver), np.asarray(problem.allowed)
    same = (receiver[:, None] == receiver) & (allowed[:, None] == allowed).all(axis=2)
    if setting.startswith("fixed"):
        same = np.eye(len(receiver), dtype=bool)
    alike = np.asarray(problem.tables.alike)
    assert np.array_equal(alike[:, None] == alike, same)
