"""What the compiled environment allows, does and rewards is what `simulator.rounds` says, step by
step, over a thousand random episodes; every finished one is a schedule that verifies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jax")
pytest.importorskip("equinox")

from gradweave.environment import Size
from gradweave.environment.problem import Instance
from gradweave.schedules.schedule import COPY, REDUCE
from gradweave.verifier import verify
from tests.environment.episodes import Episodes, episodes, padded, without_limit
from tests.environment.networks import SETTINGS, SMALL_NETWORKS, instance, instance_on
from tests.environment.reference import replay
from tests.simulator.random_networks import networks

LARGE = Size(servers=20, trees=40, hops=112, links=61, route=4)
"""Holds the networks of the paper's Table 2 that are tried."""


def check(instance: Instance, played: Episodes, episode: int) -> bool:
    """Replays an episode and verifies its schedule: whether it has come to its end."""
    again = replay(instance, played, episode)
    last = played.last
    if not again.reference.done:
        return False
    schedule = instance.schedule(last.sent_round[episode], last.sent_hop[episode])
    verdict = verify(schedule)
    assert verdict.valid, verdict.violation
    rounds = again.reference.round
    if instance.trees == "grown" and instance.collective == "reduce_scatter":
        # Played backward: rounds without a transfer at the start are past the schedule's end.
        rounds -= again.first_round
    assert schedule.rounds == rounds
    assert schedule.collective == instance.collective
    if instance.collective == "all_reduce" and not instance.overlap:
        copies, reduces = schedule.op == COPY, schedule.op == REDUCE
        assert schedule.round[copies].min() > schedule.round[reduces].max()
    return True


IN_TURN = [
    (name, setting)
    for i, name in enumerate(SMALL_NETWORKS)
    for j, setting in enumerate(SETTINGS)
    if (i + j) % 2 == 0
]
"""Half of the settings on each network, each setting on half of the networks."""


@pytest.mark.parametrize(("name", "setting"), IN_TURN)
def test_small_networks(name: str, setting: str):
    tried = instance(name, setting)
    played = episodes(without_limit(padded(tried)), seed=0)
    assert np.mean([check(tried, played, episode) for episode in range(8)]) > 0.9


@given(
    network=networks(max_servers=5),
    setting=st.sampled_from(sorted(SETTINGS)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=50)
def test_random_networks(network, setting, seed):
    tried = instance_on(network, setting)
    played = episodes(without_limit(padded(tried)), seed=seed)
    finished = [check(tried, played, episode) for episode in range(8)]
    assert any(finished)


@pytest.mark.parametrize("setting", ["fixed all_reduce", "grown all_gather"])
@pytest.mark.parametrize("name", ["bcube:n=3,k=1", "dcell:n=4,k=1", "jellyfish:reference=J10"])
def test_networks_of_the_paper(name: str, setting: str):
    tried = instance(name, setting)
    played = episodes(without_limit(padded(tried, LARGE)), 3, steps=1200)
    assert any(check(tried, played, episode) for episode in range(3))
