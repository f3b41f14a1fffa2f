"""One exchange of local updates by hand: its mean, and the bytes that each worker sends."""

import pytest

pytest.importorskip("optax", reason="the extra train is not installed")

import jax
import jax.numpy as jnp
import numpy as np

from gradweave.aggregate import MaxNorm
from gradweave.aggregate.compressors import Uncompressed
from gradweave.aggregate.local.exchange import AllReduceExchange

WORKERS, SIZE = 3, 7
PLACES = np.arange(1, SIZE + 1, dtype=np.float32)


def exchanged(compressor, in_time):
    """What `AllReduceExchange` makes of Δ = PLACES, and twice and three times as much."""
    change = jnp.arange(1.0, WORKERS + 1)[:, None] * PLACES
    mine = jnp.array(in_time)
    one = AllReduceExchange(compressor, "worker")

    def average(key, change, mine):
        return one.average(key, change, mine, mine_of_all, jnp.int32(1))

    mine_of_all = mine.sum(dtype=jnp.float32)
    keys = jax.random.split(jax.random.key(0), WORKERS)
    got = jax.vmap(average, axis_name="worker")(keys, change, mine)
    return np.asarray(got.average), np.asarray(got.sent_bytes).tolist()


@pytest.mark.parametrize(
    ("in_time", "mean"),
    [([True] * 3, 2.0), ([True, False, True], 2.0), ([False, True, True], 2.5), ([False] * 3, 0.0)],
)
def test_the_mean_of_those_in_time(in_time, mean):
    got, sent = exchanged(Uncompressed(), in_time)
    np.testing.assert_allclose(got, np.tile(mean * PLACES, (WORKERS, 1)), rtol=1e-6)
    # 2(N−1)/N of 7 floats of four bytes.
    assert sent == pytest.approx([4 / 3 * 28 * on for on in in_time])


def test_compressed_in_parts():
    """Seven numbers are three parts of three; each is sent to two others, and its mean to two."""
    got, sent = exchanged(MaxNorm(bits=8), [False, True, True])
    np.testing.assert_allclose(got, np.tile(2.5 * PLACES, (WORKERS, 1)), atol=0.2)
    assert (got == got[0]).all(), "the same bits at every worker"
    part_bytes = 4 + 4  # a byte a number, in words of four, and their greatest
    assert sent == [0, 4 * part_bytes, 4 * part_bytes]
