"""The real thing: actors of Ray, which are killed."""

import contextlib
import dataclasses
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optax", reason="the extra learn is not installed")
pytest.importorskip("ray", reason="the extra ray is not installed")

import jax.numpy as jnp
import numpy as np
import optax

import gradweave as gw
from gradweave.aggregate.asynchronous import Stragglers, Task, staleness_bound, train_on_ray
from gradweave.errors import RunError
from gradweave.processes import ray_loopback as loopback
from gradweave.processes.ray_cluster import cluster
from gradweave.schedulers import Ring
from gradweave.schedules import COLLECTIVES
from tests.aggregate.asynchronous.cases import SIZE, close, plain_loop, same, task
from tests.patience import PATIENCE_S

SYNC = {"workers": 2, "servers": 2, "steps": 30}


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    # Logs that an error names stay; here, not after the test.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        start, tries = loopback.start, []

        def failing_once(*given: Any) -> None:
            tries.append(given)
            if len(tries) == 1:
                raise ConnectionError("the machine is busy")
            start(*given)

        patch.setattr(loopback, "start", failing_once)
        with cluster() as found:
            assert len(tries) == 2
            yield found.ray


@pytest.fixture(scope="module")
def whole(ray):
    """A run that nothing happened to."""
    return train_on_ray(task(**SYNC))


@pytest.mark.quick
def test_sync_is_the_plain_loop(whole):
    expected, losses = plain_loop(task(**SYNC))
    assert close(whole.params, expected)
    assert np.allclose(whole.history.loss, losses, rtol=1e-4)
    assert whole.history.updates == 30
    assert whole.history.staleness.max() == 0
    assert (whole.replaced, whole.recovered) == (0, 0)
    assert np.all(np.diff(whole.history.seconds) >= 0)


@pytest.mark.quick
def test_bytes_are_counted(whole):
    lengths = np.array([SIZE - SIZE // 2, SIZE // 2])
    expected = np.tile(30 * 4 * lengths, (2, 1))
    assert np.array_equal(whole.traffic.pulled_bytes, expected)
    assert np.array_equal(whole.traffic.pushed_bytes, expected)


def test_staleness_is_what_happened(ray):
    """Each update takes 1 off the parameters, so that a gradient's loss says their version."""

    def gradient(x, draw):
        return x[0], jnp.ones_like(x)

    pauses = Stragglers(step_s=0.002, pause_rate=0.2, pause_s=0.02)
    given = Task(
        np.zeros(3, np.float32),
        gradient,
        optax.sgd(1.0),
        workers=3,
        steps=60,
        consistency="ssp:2",
        servers=1,
        stragglers=pauses,
    )
    run = train_on_ray(given, keep_every=50)
    history = run.history
    assert history.updates == history.gradients == 180
    assert np.array_equal(history.staleness, history.update - 1 + history.loss)
    assert 1 <= history.staleness.max() <= staleness_bound(given.rule, 3)
    assert run.params.tolist() == [-180.0] * 3
    assert [(kept.update, kept.params[0]) for kept in run.kept] == [
        (50, -50),
        (100, -100),
        (150, -150),
    ]
    for worker in range(3):
        clocks = history.clock[history.worker == worker]
        assert np.array_equal(clocks, np.arange(len(clocks)))


def killing(update: int, who: str):
    """Kills the last of them when an update is done; tells whether it did."""
    killed: list[int] = []

    def report(told) -> None:
        if told.update == update and not killed:
            killed.append(getattr(told, who)[-1])
            os.kill(killed[0], signal.SIGKILL)

    return report, killed


def test_a_killed_worker_is_replaced_and_repeats_its_step(whole):
    report, killed = killing(10, "workers")
    run = train_on_ray(task(**SYNC, elastic=False), report=report)
    assert killed
    assert run.replaced == 1
    assert same(run.params, whole.params)
    assert np.array_equal(run.history.loss, whole.history.loss)


class Enough(Exception):
    """Ends a run from its report."""


def test_others_go_on_while_a_killed_worker_is_replaced(ray):
    told = []

    def report(now) -> None:
        told.append(now)
        if now.update == 10:
            os.kill(now.workers[1], signal.SIGKILL)
        if sum(one.workers[1] not in (0, told[0].workers[1]) for one in told) > 20:
            raise Enough

    slowly = Stragglers(step_s=0.01)
    given = task(workers=2, servers=1, steps=10_000, consistency="ssp:1", stragglers=slowly)
    with pytest.raises(Enough):
        train_on_ray(given, report=report)
    alone = [one for one in told if one.update > 13 and not one.workers[1]]
    assert len(alone) > 10, "the other one did not wait"
    assert all(one.staleness == 0 for one in alone)
    assert any(one.staleness > 0 for one in told[-20:]), "and it came back"


def test_a_killed_server_sends_all_back_to_the_checkpoint(whole, tmp_path):
    report, killed = killing(17, "servers")
    run = train_on_ray(task(**SYNC), folder=tmp_path, checkpoint_every=6, report=report)
    assert killed
    assert run.recovered == 1
    assert same(run.params, whole.params)
    assert np.array_equal(run.history.loss, whole.history.loss)
    assert run.history.updates == 30
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["run.safetensors", *(f"server-{n}-update-30.safetensors" for n in (0, 1))]
    again = train_on_ray(task(**SYNC), folder=tmp_path, report=report)
    assert same(again.params, whole.params), "a finished run is read, not repeated"
    assert np.array_equal(again.history.loss, whole.history.loss)


def test_without_a_folder_a_killed_server_ends_the_run(ray):
    report, _ = killing(3, "servers")
    with pytest.raises(RunError, match=r"server 0 was lost.*give a folder"):
        train_on_ray(task(workers=1, servers=1, steps=1000), report=report)


def another_process(ray, program: str, *arguments: str, token: str | None):
    """Runs a program with the address of Ray, which it reaches on the loopback address."""
    variables = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
    if token is None:
        variables["RAY_AUTH_MODE"] = "disabled"
    else:
        variables["RAY_AUTH_TOKEN"] = token
    return subprocess.run(
        [sys.executable, "-c", program, ray.get_runtime_context().gcs_address, *arguments],
        cwd=Path(__file__).parents[3],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def token(ray) -> str:
    return ray._raylet.AuthenticationTokenLoader.instance().get_raw_token()


COMMAND = """
import os, signal, sys
from gradweave.aggregate.asynchronous import train_on_ray
from tests.aggregate.asynchronous.cases import task
from tests.aggregate.asynchronous.test_asynchronous_ray import SYNC

def report(told):
    if told.update == 17:
        os.kill(os.getpid(), signal.SIGKILL)

folder = dict(folder=sys.argv[2], checkpoint_every=5)
train_on_ray(task(**SYNC), address=sys.argv[1], report=report, **folder)
"""


def test_a_killed_command_goes_on_to_the_same_bits(ray, whole, tmp_path):
    done = another_process(ray, COMMAND, str(tmp_path), token=token(ray))
    assert done.returncode == -signal.SIGKILL
    assert re.fullmatch(
        r"gradweave: the process that used Ray ended; updates up to 1[05] are kept: .*\n",
        done.stderr,
    )
    first = []
    run = train_on_ray(task(**SYNC), folder=tmp_path, report=lambda told: first.append(told.update))
    assert first[0] in (11, 16), "after the last cut that was written whole"
    assert same(run.params, whole.params)
    assert np.array_equal(run.history.loss, whole.history.loss)
    assert np.all(np.diff(run.history.seconds) >= 0)


FAULTS = {"num_failures": 2, "req_failure_prob": 10, "resp_failure_prob": 10}
"""Calls of each process that are not heard, or not answered: one in five until there were two."""
UNHEARD = """
import json
from gradweave.aggregate.asynchronous import calls, train_on_ray
from tests.aggregate.asynchronous.cases import task
from tests.aggregate.asynchronous.test_asynchronous_ray import SYNC

retry, lost = calls.RetriedCall.retry, []
calls.RetriedCall.retry = lambda call: lost.append(call) or retry(call)
run = train_on_ray(task(**SYNC))
losses = [loss.hex() for loss in run.history.loss.tolist()]
print(json.dumps([len(lost), run.recovered, run.replaced, losses]))
"""


def test_calls_that_are_lost_are_made_again(whole):
    """Ray's own injection of faults, in a Ray that is started for it."""
    variables = {
        "RAY_testing_rpc_failure": json.dumps({"CoreWorkerService.grpc_client.PushTask": FAULTS}),
        "RAY_testing_rpc_failure_avoid_intra_node_failures": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", UNHEARD],
        cwd=Path(__file__).parents[3],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    lost, *others = json.loads(done.stdout.splitlines()[-1])
    assert lost >= 1, "faults were injected"
    assert others == [0, 0, [loss.hex() for loss in whole.history.loss.tolist()]]


ASK = """
import sys
from ray._raylet import GcsClient

print(len(GcsClient(address=sys.argv[1]).get_all_node_info()))
"""


def test_a_process_without_the_token_is_refused(ray):
    assert another_process(ray, ASK, token=token(ray)).stdout == "1\n"
    for wrong in (None, "0" * 64):
        done = another_process(ray, ASK, token=wrong)
        assert done.returncode == 1
        assert "InvalidAuthToken" in done.stderr
    assert "RAY_AUTH_TOKEN" not in os.environ, "nor is it handed to what this process starts"


def test_nothing_listens_on_the_network(ray):
    psutil = pytest.importorskip("psutil")
    here, listening = psutil.Process(), []
    for process in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has ended listens to nobody
            listening += [
                (process.name(), ipaddress.ip_address(one.laddr.ip))
                for one in process.net_connections("inet")
                if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM
            ]
    assert {"raylet", "gcs_server"} < {name for name, _ in listening}
    mapped = [(name, getattr(ip, "ipv4_mapped", None) or ip) for name, ip in listening]
    assert all(ip.is_loopback for _, ip in mapped), mapped


def test_what_ray_writes_is_for_its_user_only(ray):
    folder = Path(ray._private.worker.global_worker.node.get_session_dir_path()).parents[1]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_the_gradient_function_raises_ends_the_run(ray):
    def gradient(x, draw):
        raise ArithmeticError("no gradient today")

    given = dataclasses.replace(task(workers=1, servers=1), gradient=gradient)
    with pytest.raises(RunError, match="ArithmeticError: no gradient today"):
        train_on_ray(given)


def test_collective_groups_of_actors_run_by_schedules(ray):
    """Of `gradweave.torch.register_ray_backend`; here, where there is a Ray already."""
    pytest.importorskip("torch", reason="the extra torch is not installed")
    pair = gw.topology.complete(2)
    schedules = {each: Ring().schedule(pair, collective=each) for each in COLLECTIVES}

    class Actor:
        def collectives(self, rank: int) -> list[Any]:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            import torch
            from ray.util import collective
            from ray.util.collective.types import ReduceOp

            from gradweave.errors import ScheduleError
            from gradweave.torch import register_ray_backend

            register_ray_backend(**schedules)
            with pytest.raises(ScheduleError, match="there are 3 actors in the group"):
                collective.init_collective_group(3, rank, "gradweave", "three")
            collective.init_collective_group(2, rank, "gradweave", "pair")
            ends = []
            for operation in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.PRODUCT):
                array = np.full((2, 2), rank + 2.0)
                collective.allreduce(array, "pair", operation)
                ends.append(array.tolist())
            every = [torch.zeros(1, 2) for _ in range(2)]
            collective.allgather(every, torch.full((1, 2), rank + 2.0), "pair")
            part = torch.zeros(3)
            parts = [torch.arange(3.0) + 10 * rank, torch.arange(3.0) - 10 * rank]
            collective.reducescatter(part, parts, "pair")
            planned = collective.get_group_handle("pair").planned
            sent = {key: int(by.sent_bytes.sum()) for key, by in planned.items()}
            collective.destroy_collective_group("pair")
            return [*ends, [one.tolist() for one in every], part.tolist(), sent]

    actors = [ray.remote(num_cpus=0)(Actor).remote() for _ in range(2)]
    ends = ray.get([actor.collectives.remote(rank) for rank, actor in enumerate(actors)])
    for actor in actors:
        ray.kill(actor)
    reduced = [[[value] * 2] * 2 for value in (5.0, 3.0, 6.0)]
    sent = {"all_reduce": 2 * 32, "reduce_scatter": 12, "all_gather": 8}
    for rank, got in enumerate(ends):
        scattered = [2 * each + (-10.0 if rank else 10.0) for each in range(3)]
        assert got == [*reduced, [[[2.0, 2.0]], [[3.0, 3.0]]], scattered, sent]
