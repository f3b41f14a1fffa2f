"""Ranks on other hosts than their servers' names are warned of, and only those."""

import dataclasses
import warnings

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import InputWarning
from gradweave.execute.running import hosts
from gradweave.execute.running.hosts import elsewhere, warn_of_hosts


@pytest.mark.parametrize(
    ("names", "on", "says"),
    [
        (["n1", "n2"], ["n2", "n1"], "rank 0 runs on host n2, while the schedule has it as serve"),
        (["n1", "n2", "n3"], ["n1", "n3", "n2"], "rank 1 runs on host n3, while the schedule"),
        (["n1", "n2"], ["other", "n2.example.org"], "rank 0 runs on host other, "),
        (["alpha", "beta"], ["beta", "alpha"], "has it as server alpha (1 more is elsewhere);"),
        (["a:0", "b:0", "a:1", "b:1"], ["a", "a", "b", "b"], "rank 1 runs on host a, while the "),
        (["n1", "n2"], ["x", "y"], "rank 0 runs on host x, while the schedule has it as server n1"),
    ],
)
def test_ranks_elsewhere(names, on, says):
    assert says in (elsewhere(names, on) or "")


@pytest.mark.parametrize(
    ("names", "on"),
    [
        (["n1", "n2"], ["n1", "n2"]),
        (["N1", "n2"], ["n1.example.org", "n2.example.org"]),
        (["n1.example.org", "n2"], ["n1", "n2"]),
        (["a:0", "b", "a:1"], ["a", "b", "a"]),
        (["n1", "n2"], ["n1", "n1"]),
        (["n1", "n2"], ["laptop", "laptop"]),
        (["gpu0", "gpu1"], ["x", "y"]),
        (["server-0", "server-1"], ["x", "y"]),
        (["s0", "h1"], ["x", "y"]),
        (["Oregon 1", "Tokyo 1"], ["x", "y"]),
        (["0", "2"], ["x", "y"]),
        (["10.0.0.1", "10.0.0.2"], ["x", "y"]),
    ],
)
def test_no_false_alarm(names, on):
    assert elsewhere(names, on) is None


@dataclasses.dataclass
class Told:
    """A runner among processes that all say the same, but the second one another host."""

    ranks: list[int]

    def gathered(self, numbers):
        other = np.zeros_like(numbers)
        other[:2] = np.frombuffer(b"n1", np.uint8)
        return np.stack([numbers, other])


def test_rank_0_warns_in_one_line(monkeypatch):
    network = dataclasses.replace(gw.topology.complete(2), labels=("n1", "n2"))
    monkeypatch.setattr(hosts.socket, "gethostname", lambda: "n2")
    with pytest.warns(InputWarning, match=r"^rank 0 runs on host n2, .* server n1 \(1 more is"):
        warn_of_hosts(Told([0]), network)  # pyright: ignore[reportArgumentType]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_hosts(Told([1]), network)  # pyright: ignore[reportArgumentType]
        warn_of_hosts(Told([0]), gw.topology.complete(2))  # pyright: ignore[reportArgumentType]
        monkeypatch.setattr(hosts.socket, "gethostname", lambda: "n1")
        warn_of_hosts(Told([0]), network)  # pyright: ignore[reportArgumentType]
