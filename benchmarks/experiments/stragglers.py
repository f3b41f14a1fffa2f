"""The cost of slow workers under sync, ssp and async: gradients per second, loss against time.

    python benchmarks/experiments/stragglers.py

Four workers and two servers, each a process, on Ray. Two cores cannot compute for four workers at
once, so the duration of computing is emulated: a worker computes its real gradient, about a
millisecond, and sleeps until the step has taken 20 ms, five times as long if it is slow. Messages,
waiting and updates are real. The protocol is measured, not the machine's arithmetic.

Three scenarios of slowness:

- constant: worker 3 always takes 5 times as long;
- roaming: at any time one of the four does, redrawn every 0.1 s;
- pauses: each step pauses for 0.2 s with probability 0.05.

A rate is gradients applied per second, over the last three quarters of a run's gradients; an update
under sync applies four. The simulator's rate, with messages in no time, is reported beside each
measured one.

The task is least squares with covariance eigenvalues 1, 1/2, 1/3 … and no noise, by plain gradient
descent on fresh batches. In the runs on Ray every rule applies the same number of gradients with
the same total step: sync steps by η along the mean of four, the others by η/4 along each, so that
loss at equal gradients differs by staleness alone. The price of a step is measured by the
simulator, which is exact: all rules with the same η per update, for several η, and the loss after
equal numbers of updates and of gradients.
"""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture, figure_with
from benchmarks.record import record
from gradweave.aggregate.asynchronous import (
    Run,
    Stragglers,
    Task,
    simulate_training,
    staleness_bound,
    train_on_ray,
)
from gradweave.aggregate.asynchronous.consistency import from_spec
from gradweave.processes.ray_cluster import cluster

SEEDS = (0, 1, 2)
WORKERS, SERVERS, STEPS = 4, 2, 250
STEP_S, FACTOR = 0.02, 5.0
RATE = 0.8
"""η under sync."""
RATES = (0.1, 0.2, 0.4, 0.8, 1.2, 1.6)
"""η of all rules in the price of a step."""
DIVERGED = 10.0
PARAMETERS, BATCH, TEST = 1024, 32, 1024
POINTS = 50
"""Losses recorded along a run."""
SCENARIOS: dict[str, dict[str, Any]] = {
    "constant": {"slow": ((3, FACTOR),)},
    "roaming": {"spell_s": 0.1, "spell_factor": FACTOR},
    "pauses": {"pause_rate": 0.05, "pause_s": 0.2},
}
RULES = {
    "sync": {"consistency": "sync"},
    "ssp(3)": {"consistency": "ssp:bound=3"},
    "ssp(3), catching up": {"consistency": "ssp:bound=3,catch_up=true"},
    "async": {"consistency": "async"},
    "async, scaled": {"consistency": "async", "scale_by_staleness": True},
}


def problem(seed: int) -> tuple[np.ndarray, Any, Any]:
    """Initial parameters, the gradient function, and the reported loss, on other data."""
    truth_key, test_key = jax.random.split(jax.random.key(seed))
    scale = (np.arange(PARAMETERS, dtype=np.float32) + 1) ** -0.5
    truth = np.asarray(jax.random.normal(truth_key, (PARAMETERS,)))
    inputs = scale * np.asarray(jax.random.normal(test_key, (TEST, PARAMETERS)))

    def squares(params: Any, x: Any) -> jax.Array:
        return 0.5 * jnp.mean((x @ (params - truth)) ** 2)

    def loss(params: Any, draw: Any) -> jax.Array:
        return squares(params, scale * jax.random.normal(draw.key, (BATCH, PARAMETERS)))

    return 0 * truth, jax.value_and_grad(loss), jax.jit(lambda params: squares(params, inputs))


def task(scenario: str, rule: str, seed: int, rate: float | None = None) -> tuple[Task, Any]:
    """The task of a rule, and the reported loss.

    Args:
        scenario: which workers are slow.
        rule: the consistency.
        seed: of everything.
        rate: η of each update; if not given, with the same total step under every rule.
    """
    params, gradient, loss = problem(seed)
    if rate is None:
        rate = RATE if rule == "sync" else RATE / WORKERS
    asynchronous = Task(
        params,
        gradient,
        optax.sgd(rate),
        workers=WORKERS,
        steps=STEPS,
        servers=SERVERS,
        seed=seed,
        stragglers=Stragglers(step_s=STEP_S, seed=seed, **SCENARIOS[scenario]),
        **RULES[rule],
    )
    return asynchronous, loss


def later_rate(run: Run) -> float:
    """Gradients per second, without the first quarter of them."""
    seconds = run.history.seconds
    return run.history.gradients_per_s(seconds[len(seconds) // 4], seconds[-1])


def keep_every(rule: str) -> int:
    gradients = WORKERS * STEPS // POINTS
    return gradients // WORKERS if rule == "sync" else gradients


def curve(run: Run, loss: Any) -> dict[str, list[float]]:
    return {
        "gradients": [kept.gradients for kept in run.kept],
        "seconds": [round(kept.seconds, 3) for kept in run.kept],
        "loss": [float(f"{float(loss(kept.params)):.4g}") for kept in run.kept],
    }


def row(scenario: str, rule: str, seed: int) -> dict[str, Any]:
    asynchronous, loss = task(scenario, rule, seed)
    run = train_on_ray(asynchronous, keep_every=keep_every(rule))
    virtual = simulate_training(asynchronous, keep_every=keep_every(rule))
    history = run.history
    result = {
        "scenario": scenario,
        "rule": rule,
        "seed": seed,
        "gradients_per_s": later_rate(run),
        "simulated_gradients_per_s": later_rate(virtual),
        "seconds": float(history.seconds[-1]),
        "staleness_mean": float(history.staleness.mean()),
        "staleness_most": int(history.staleness.max()),
        "staleness_bound": staleness_bound(from_spec(RULES[rule]["consistency"]), WORKERS),
        "gradients_of_each_worker": np.bincount(history.worker, minlength=WORKERS).tolist(),
        "curve": curve(run, loss),
    }
    scalars = {k: v for k, v in result.items() if "curve" not in k}
    print(json.dumps(scalars | {"loss": result["curve"]["loss"][-1]}), flush=True)
    return result


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each rule beside sync: ratios of rates, within a seed."""
    comparisons = []
    at = {(row["scenario"], row["rule"], row["seed"]): row for row in rows}
    for scenario in SCENARIOS:
        for rule in RULES:
            pairs = [(at[scenario, rule, s], at[scenario, "sync", s]) for s in SEEDS]

            def ratios(key: str, pairs: list = pairs) -> list[float]:
                return [one[key] / sync[key] for one, sync in pairs]

            comparisons.append(
                {
                    "scenario": scenario,
                    "rule": rule,
                    "times_sync": ratios("gradients_per_s"),
                    "simulated_times_sync": ratios("simulated_gradients_per_s"),
                }
            )
    return comparisons


def price(rule: str, seed: int) -> list[dict[str, Any]]:
    """Simulated with worker 3 slow: the loss after equal updates and gradients, for several η."""
    prices = []
    for rate in RATES:
        asynchronous, loss = task("constant", rule, seed, rate)
        run = simulate_training(asynchronous, keep_every=STEPS)
        prices.append(
            {
                "rule": rule,
                "seed": seed,
                "rate": rate,
                "loss_after_updates": finite(loss(run.kept[0].params)),
                "loss_after_gradients": finite(loss(run.params)),
            }
        )
    return prices


def finite(loss: jax.Array) -> float | None:
    """The loss; None if it diverged."""
    return float(loss) if float(loss) < DIVERGED else None


TITLES = {
    "constant": "worker 3 always 5 times slower",
    "roaming": "one worker at a time 5 times slower",
    "pauses": "pauses of 0.2 s, one in 20 steps",
}
COLORS = {
    "sync": "#23262b",
    "ssp(3)": "#e3903b",
    "ssp(3), catching up": "#3ca951",
    "async": "#4269d0",
    "async, scaled": "#9aa7e0",
}


def draw(result: dict[str, Any], path: Path) -> None:
    """A row of panels for each scenario: rates, loss against time, loss against gradients."""
    rows = result["rows"]
    figure, panels = figure_with(
        (12, 3.3 * len(SCENARIOS)), len(SCENARIOS), 3, dpi=130, width_ratios=(1, 1.3, 1.3)
    )
    for line, scenario in zip(panels, SCENARIOS, strict=True):
        of = {
            rule: [row for row in rows if (row["scenario"], row["rule"]) == (scenario, rule)]
            for rule in RULES
        }
        draw_rates(line[0], of, scenario)
        for panel, key in zip(line[1:], ("seconds", "gradients"), strict=True):
            for rule, own in of.items():
                for place, one in enumerate(own):
                    label = rule if place == 0 else None
                    x, y = one["curve"][key], one["curve"]["loss"]
                    panel.plot(x, y, color=COLORS[rule], linewidth=1, alpha=0.8, label=label)
            panel.set_yscale("log")
            panel.set_yticks([0.4, 0.6, 1, 2], ["0.4", "0.6", "1", "2"])
            panel.minorticks_off()
            panel.set_xlabel({"seconds": "seconds", "gradients": "gradients applied"}[key])
            panel.set_ylabel("loss on fresh data")
        line[1].legend(fontsize=7, frameon=False)
    for panel in panels.flat:
        panel.grid(alpha=0.3)
    figure.savefig(path)


def draw_rates(panel: Any, of: dict[str, list[dict[str, Any]]], scenario: str) -> None:
    for place, (rule, own) in enumerate(of.items()):
        rates = [row["gradients_per_s"] for row in own]
        panel.barh(place, np.mean(rates), color=COLORS[rule], height=0.6)
        panel.plot([min(rates), max(rates)], [place, place], color="#c8c8c8", linewidth=2)
        ideal = np.mean([row["simulated_gradients_per_s"] for row in own])
        panel.plot([ideal, ideal], [place - 0.38, place + 0.38], color="#c0392b")
    sync = np.mean([row["gradients_per_s"] for row in of["sync"]])
    panel.axvline(2.5 * sync, color="#888888", linestyle=":", linewidth=1)
    panel.set_yticks(range(len(of)), list(of), fontsize=8)
    panel.invert_yaxis()
    panel.set_title(TITLES[scenario], fontsize=10, loc="left")
    panel.set_xlabel("gradients/s; grey: range, red: simulated, dots: 2.5 × sync", fontsize=8)


def main() -> None:
    picture = Picture("stragglers", draw, ("rows",))
    parser_of(__doc__, picture).parse_args()
    rows, load, begin = [], os.getloadavg()[0], time.monotonic()
    with cluster():
        for seed in SEEDS:
            rows += [row(scenario, rule, seed) for scenario in SCENARIOS for rule in RULES]
    prices = [one for seed in SEEDS for rule in RULES for one in price(rule, seed)]
    record(
        "stragglers",
        libraries=("ray", "jax", "jaxlib", "optax"),
        seeds=SEEDS,
        load_at_start=load,
        minutes=round((time.monotonic() - begin) / 60, 1),
        workers=WORKERS,
        servers=SERVERS,
        parameters=PARAMETERS,
        rate=RATE,
        step_s=STEP_S,
        factor=FACTOR,
        scenarios={
            name: dataclasses.asdict(Stragglers(step_s=STEP_S, **options))
            for name, options in SCENARIOS.items()
        },
        emulation="durations by sleep, gradients real",
        compared=compared(rows),
        price_updates=STEPS,
        price_gradients=STEPS * WORKERS,
        prices=prices,
        rows=rows,
    )
    picture.redraw()


if __name__ == "__main__":
    main()
