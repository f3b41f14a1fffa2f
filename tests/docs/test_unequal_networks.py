"""The networks of a recorded benchmark: drawn alike again, and as their source says."""

import numpy as np
import pytest

from benchmarks.unequal_networks import COUNT, unequal_network, wide_areas


def test_sixty_networks_that_differ() -> None:
    made = [unequal_network(seed)[1] for seed in range(COUNT)]
    assert len({network.name for network in made}) == COUNT == 60
    for network in made:
        assert np.ptp(network.bandwidth_bytes_per_s) or np.ptp(network.latency_s), network.name
        assert np.array_equal(network.latency_s, network.latency_s[network.opposite])


@pytest.mark.parametrize("seed", [0, 20, 28])
def test_a_seed_is_one_network(seed: int) -> None:
    one, other = (unequal_network(seed)[1] for _ in range(2))
    assert one.name == other.name
    assert np.array_equal(one.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s)


def test_published_tables_are_whole() -> None:
    by_name = {network.name: network for network in wide_areas()}
    sizes = {name: (one.num_servers, one.num_links) for name, one in by_name.items()}
    assert sizes["ten cities"] == (10, 45)
    assert sizes["Abilene"] == (12, 15)
    assert sizes["GÉANT"] == (22, 36)
    assert sizes["GÉANT 2012"] == (40, 61)
    abilene = by_name["Abilene"]
    coast = abilene.labels.index("STTL"), abilene.labels.index("SNVA")
    assert abilene.latency_s[abilene.find_links(*coast)] == pytest.approx(1138 / 200e3)
