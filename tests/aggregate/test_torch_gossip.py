"""Gossip in PyTorch: the parameters of JAX's, by processes of this machine."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("optax", reason="the extra train is not installed")

import jax
import jax.numpy as jnp
import optax
import torch

from gradweave import aggregate
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.rules import DPSGD, RULES, ChocoSGD
from gradweave.errors import OptionError
from gradweave.topology import ring
from gradweave.torch import Gossip
from tests.aggregate import torch_gossip_cases as cases
from tests.aggregate.torch_gossip_cases import AIMS, SIZES, N
from tests.patience import PATIENCE_S


def mixing_of_all_steps(how: dict[str, Any]) -> MixingMatrix:
    """The matrix, or those of before and after it changed, as one sequence."""
    names = [how["mixing"]] * cases.CHANGE_STEP
    names += [how.get("then", how["mixing"])] * (cases.STEPS - cases.CHANGE_STEP)
    if len(set(names)) == 1:
        return cases.mixing_of(names[0])
    matrices = [cases.mixing_of(name) for name in names]
    return MixingMatrix.of([one.weights[step % one.period] for step, one in enumerate(matrices)])


def by_jax(how: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """[N, size] the parameters, and [N] the bytes sent, by the rules in JAX."""
    optimizer = aggregate.gossip(
        RULES[how["rule"]](),
        optax.sgd(cases.RATE, cases.MOMENTUM),
        mixing_of_all_steps(how),
        cases.COMPRESSORS[how.get("compressor")],
        local_steps=how.get("local_steps", 1),
        seed=cases.SEED,
        strictness="ignore",
    )
    params = (jnp.zeros((N, SIZES[0])), jnp.zeros((N, SIZES[1]), how.get("dtype", "float32")))
    aims = AIMS[:, : SIZES[0]], AIMS[:, SIZES[0] :]

    @jax.jit
    def step(number, params, state):
        gradients = [(x - aim).astype(x.dtype) for x, aim in zip(params, aims, strict=True)]
        if how.get("spoilt"):
            bad = jnp.where(number == cases.SPOILT_STEP, jnp.nan, 0)
            gradients[0] = gradients[0].at[cases.SPOILT_WORKER, 3].add(bad)
        update = jax.vmap(optimizer.update, axis_name="server")
        updates, state = update(tuple(gradients), state, params)
        return jax.vmap(optax.apply_updates)(params, updates), state

    state, sent = jax.vmap(optimizer.init)(params), np.zeros(N)
    for number in range(cases.STEPS):
        params, state = step(number, params, state)
        sent += np.asarray(state.sent_bytes)
    return np.concatenate([np.asarray(one, np.float32) for one in params], 1), sent


@pytest.mark.slow
def test_processes_have_the_parameters_of_jax_and_go_on_after_they_were_killed(tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-m", cases.__name__, str(tmp_path), str(PATIENCE_S)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    workers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(N - 1)]
    for number, how in enumerate(cases.TRAININGS):
        found = [worker["trainings"][number] for worker in workers]
        x, sent = by_jax(how)
        atol = 0.02 if "dtype" in how else 2e-5
        np.testing.assert_allclose([one["x"] for one in found], x[: N - 1], atol=atol)
        np.testing.assert_allclose(found[0]["consensus"], x.mean(0), atol=atol)
        assert [one["sent"] for one in found] == sent[: N - 1].tolist()
        assert [one["left_out"] for one in found] == [0, 0, int("spoilt" in how)]
    for worker in workers:
        alike, size, matrix, estimates = worker["refusals"]
        assert "those of 1 are not those of 0" in alike
        assert "is for 5 workers, the group has 4 processes" in size
        assert "but that of worker 2 differs from that of worker 0" in matrix
        assert "cannot change; with d_psgd it can" in estimates
    assert "worker 3 lost" in workers[0]["lost"]


def test_bad_input_is_refused_before_any_process_is_asked():
    fixed = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    changing = MixingMatrix.in_matchings(ring(4))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(OptionError, match="at least one that is trained"):
        Gossip(torch.optim.SGD([fixed]), DPSGD(), changing)
    with pytest.raises(OptionError, match="the same in all steps"):
        Gossip(optimizer, ChocoSGD(), changing)
    with pytest.raises(OptionError, match="local_steps"):
        Gossip(optimizer, DPSGD(), changing, local_steps=0)


def test_options_that_are_not_given_are_those_of_jax():
    """So that the same call trains the same parameters, compressed by the same random numbers."""
    here, there = (inspect.signature(one).parameters for one in (Gossip, aggregate.gossip))
    options = {name for name, one in here.items() if one.kind is one.KEYWORD_ONLY} - {"buffers"}
    assert options == {"local_steps", "seed", "strictness", "same_data"}
    assert all(here[name].default == there[name].default for name in options)


def test_doubts_are_of_pytorchs_optimizers_and_types_too():
    def refused(optimizer: torch.optim.Optimizer) -> str:
        with pytest.raises(OptionError) as error:
            Gossip(optimizer, DPSGD(), MixingMatrix.ring(4), strictness="refuse")
        return str(error.value)

    whole, half = (torch.nn.Parameter(torch.zeros(2, dtype=getattr(torch, name)))
                   for name in ("float32", "bfloat16"))  # fmt: skip
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        assert "not linear in the gradients" in refused(kind([whole]))
    assert "parameters are bfloat16, and each mixing is rounded to 0.008" in refused(
        torch.optim.SGD([half], momentum=0.9, weight_decay=0.01)
    )
    assert "no process group" in refused(torch.optim.SGD([whole], nesterov=True, momentum=0.9))
