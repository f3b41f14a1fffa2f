"""Forecasts of aggregations, compared with figures by hand."""

import dataclasses
import math

import numpy as np
import pytest

import gradweave as gw
from gradweave.aggregate.advice import (
    CANDIDATES,
    PACKED_S,
    SLOWER,
    UNPACKED_S,
    Forecast,
    advise,
    reached_after,
)
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.errors import OptionError, SpecError
from gradweave.topology.units import ROUNDING

SIZE, COMPUTE_S = 4_000_000, 0.1
RATE = 125e6
"""Bytes per second of 1 Gbit/s."""
RING = "ring:8,bandwidth=1Gbit/s,latency=0us,overhead=0us"
STAR = "star:4,bandwidth=1Gbit/s,latency=0us,overhead=0us"


def forecast(aggregation: str, network: str = RING, **options) -> Forecast:
    options = {"runtime": "ideal", "candidates": [aggregation]} | options
    (only,) = advise(network, SIZE, COMPUTE_S, **options).forecasts
    return only


@pytest.mark.parametrize(
    ("aggregation", "network", "exchange_s", "step_bytes", "reached"),
    [
        # 2(N-1)/N of the gradient, at the rate of a link.
        ("mean", RING, 2 * 7 / 8 * SIZE / RATE, 2 * 7 / 8 * SIZE, 1),
        ("ring", RING, 2 * 7 / 8 * SIZE / RATE, 2 * 7 / 8 * SIZE, 1),
        # Three gradients into the server, and three out of it.
        ("parameter_server:server=2", STAR, 6 * SIZE / RATE, 3 * SIZE, 1),
        # One message in each direction of each link.
        ("d_psgd", RING, SIZE / RATE, 2 * SIZE, 8),
        # Two of three: the neighbours take turns.
        ("d_psgd:mixing=matchings", RING, SIZE / RATE, SIZE, 6),
        ("d_psgd:local_steps=10", RING, SIZE / RATE, 2 * SIZE / 10, 80),
        ("diloco:local_steps=10", RING, 2 * 7 / 8 * SIZE / RATE, 2 * 7 / 8 * SIZE / 10, 10),
    ],
)
def test_figures_are_those_by_hand(aggregation, network, exchange_s, step_bytes, reached):
    one = forecast(aggregation, network)
    assert one.exchange_s == pytest.approx(exchange_s, rel=1e-6)
    assert one.step_bytes == pytest.approx(step_bytes)
    assert one.reached_after == reached
    assert one.step_s == pytest.approx(COMPUTE_S + one.exchange_s / one.every)


def test_packed_messages_have_their_real_size():
    pytest.importorskip("jax")
    one = forecast("choco_sgd:bits=4")
    elements, blocks = SIZE // 4, math.ceil(SIZE / 4 / 128)
    assert one.step_bytes == 2 * (elements * 4 // 8 + 4 * blocks)
    on_links_s = one.step_bytes / 2 / RATE
    assert one.exchange_s == pytest.approx(on_links_s + elements * (PACKED_S + 3 * UNPACKED_S))
    # A smaller share of the neighbours' average takes longer than the whole.
    assert one.reached_after > forecast("d_psgd").reached_after


def test_sparse_messages_go_whole_to_all():
    pytest.importorskip("jax")
    one = forecast("sparseloco:local_steps=10", STAR)
    assert one.reached_after == 10 and one.step_bytes < 0.1 * 3 * SIZE / 10


def test_a_delay_hides_an_exchange():
    plain = forecast("diloco:local_steps=10,fragments=5")
    behind = forecast("diloco:local_steps=10,fragments=5,delay=1")
    assert plain.exchange_s < COMPUTE_S
    assert plain.step_s > COMPUTE_S and behind.step_s == COMPUTE_S


def test_pairs_meet_anywhere_on_the_network():
    near, far = (forecast("noloco:local_steps=10", f"complete:{n}") for n in (8, 16))
    assert near.reached_after <= far.reached_after < math.inf
    assert near.step_bytes == SIZE / 10


def test_all_share_the_links_of_an_asynchronous_server():
    one = forecast("asynchronous", STAR)
    assert one.exchange_s + COMPUTE_S == pytest.approx(
        max(COMPUTE_S + 2 * SIZE / RATE, 6 * SIZE / RATE)
    )
    spread = forecast("asynchronous:servers=4", STAR)
    assert spread.step_s < one.step_s and spread.step_bytes < 2 * SIZE


def test_schedules_are_found_for_the_network():
    network = "torus:3x3,bandwidth=1Gbit/s,latency=0us,overhead=0us"
    found = forecast("scheduled", network, time_limit=2)
    assert found.schedule is not None and gw.verify(found.schedule).valid
    assert found.step_s < forecast("mean", network).step_s
    least_s = float(gw.bounds.least_seconds(gw.topology.from_spec(network), SIZE).seconds)
    assert found.exchange_s >= least_s * (1 - ROUNDING)


def test_shared_processors_make_messages_slower():
    gloo = gw.simulator.runtime.runtime_of("gloo")
    shared = dataclasses.replace(gloo, processors=1)
    fast = "ring:8,bandwidth=100Gbit/s"
    for aggregation in ("mean", "d_psgd"):
        alone, together = (forecast(aggregation, fast, runtime=one) for one in (gloo, shared))
        assert together.exchange_s > 1.5 * alone.exchange_s


def test_the_front_has_what_nothing_beats():
    every = advise(
        RING, SIZE, COMPUTE_S, runtime="ideal", candidates=CANDIDATES, time_limit=1
    ).forecasts
    for one in every:
        beaten = [
            other
            for other in every
            if other.figures != one.figures
            and all(a <= b for a, b in zip(other.figures, one.figures, strict=True))
        ]
        assert one.on_front == (not beaten), (one, beaten)
    assert list(every) == sorted(every, key=lambda one: one.figures)


def test_the_advised_step_is_quick_and_reaches_all_soonest():
    names = ["mean", "d_psgd", "diloco:local_steps=100"]
    slow = advise(RING, SIZE, COMPUTE_S, runtime="ideal", candidates=names)
    quick = advise(RING, SIZE, 10.0, runtime="ideal", candidates=names)
    assert quick.advised.aggregation == "mean"  # messages hardly count
    times = {one.aggregation: one.step_s for one in slow.forecasts}
    within = [name for name in names if times[name] <= SLOWER * min(times.values())]
    assert slow.advised.aggregation == within[0] != "mean"
    doubtful = [*names, "ecd_psgd:bits=4"]
    assert not advise(RING, SIZE, 10.0, runtime="ideal", candidates=doubtful).advised.doubts


def test_disagreement_falls_to_a_tenth():
    rng = np.random.default_rng(3)
    mixing = MixingMatrix.ring(8)
    spread = rng.standard_normal((8, 100_000))
    spread -= spread.mean(0)
    shares = [np.linalg.norm(spread)]
    for _ in range(int(reached_after(mixing))):
        spread = mixing.weights[0] @ spread
        shares.append(np.linalg.norm(spread))
    assert shares[-1] <= 0.1 * shares[0] * 1.01 and shares[-2] > 0.1 * shares[0]
    assert reached_after(MixingMatrix.of(np.eye(3)), most=10) == math.inf


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((RING, 3, 0.1), OptionError, "gradient_bytes: expected at least 4, got 3"),
        ((RING, SIZE, -1.0), OptionError, "compute_s"),
        ((RING, SIZE, math.nan), OptionError, "compute_s"),
    ],
)
def test_bad_values_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        advise(*arguments, candidates=["mean"])


@pytest.mark.parametrize(
    ("candidates", "error", "message"),
    [
        ([], OptionError, "at least one"),
        (["men"], SpecError, "did you mean mean"),
        (["d_psgd:network=ring:4"], OptionError, "has 4 servers"),
        (["parameter_server:server=8"], OptionError, "expected 0 to 7"),
    ],
)
def test_bad_candidates_are_refused(candidates, error, message):
    with pytest.raises(error, match=message):
        advise(RING, SIZE, 0.1, candidates=candidates)
