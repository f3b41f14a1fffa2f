"""The exponential computed from basic operations."""

import math

import numpy as np

from gradweave.schedulers.kernels.exponential import exponentials


def test_it_is_the_exponential_to_two_bits():
    x = np.concatenate([np.linspace(-700, 700, 20_001), [0.0, 1.0, 1e-300, math.log(2) / 2]])
    found = exponentials(x)
    expected = np.array([math.exp(one) for one in x])
    assert np.abs(found / expected - 1).max() <= 2**-51
    assert found[-4] == 1.0 and exponentials(np.array([-1e4, 1e4])).tolist() == [0.0, math.inf]
