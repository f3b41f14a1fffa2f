"""Ray is started on this machine alone, or not at all; another stands in its place."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradweave.errors import RunError
from gradweave.processes import ray_loopback


@pytest.mark.parametrize(
    ("address", "alone"), [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False)]
)
def test_a_ray_that_others_can_reach_is_shut_down(monkeypatch, address, alone):
    called = []

    def init(**options: Any) -> None:
        called.append(("init", options["address"], os.environ[ray_loopback.MARK]))

    ray = SimpleNamespace(
        init=init,
        shutdown=lambda: called.append("shutdown"),
        util=SimpleNamespace(get_node_ip_address=lambda: address),
    )
    monkeypatch.setattr(ray_loopback, "_on_loopback", contextlib.nullcontext)
    monkeypatch.setattr(ray_loopback, "_forget_token", lambda _: None)
    refused = pytest.raises(RunError, match=f"listens on {address}, not only on this machine")
    with contextlib.nullcontext() if alone else refused:
        ray_loopback.start(ray, Path("folder"), "mark")
    assert called == [("init", "local", "mark"), *["shutdown"] * (not alone)]
    assert ray_loopback.MARK not in os.environ
