"""Two opposed teams: extra-gradient in place of simultaneous updates, judged against each other.

    python benchmarks/experiments/saddle_games.py [--responses]

`MPE_simple_tag_v3`: three pursuers, who get 10 for each touch, and one evader, who loses them and
is held within bounds. Each team has its own parameters and learns by PPO, as by `gradweave train
--env MPE_simple_tag_v3 --algorithm ippo --set parameter_sharing='"team"'`. An update makes z + Δ(z)
of all parameters z, by a roll-out of them. Extra-gradient looks ahead: it plays and learns at
z + Δ(z), too, and makes z + Δ(z + Δ(z)) of z. It has half the updates, so that both have played as
many steps.

Cross-play: the mean return of pursuers of each way and seed against evaders of each way and seed.
With `--responses` also how much more a team earns that goes on learning while the other stands
still: a lower bound of how far both are from an equilibrium, as a best response takes longer.
"""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from gradweave import aggregate
from gradweave.marl.config import Config
from gradweave.marl.evaluation import evaluate
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.ppo import PPOLearner, PPOState
from gradweave.marl.program import AT_ONCE, Program

GAME, SEEDS, STEPS, RESPONSE_STEPS, EPISODES = "MPE_simple_tag_v3", 3, 300_000, 150_000, 512
SIDES = ("pursuers", "evader")


@dataclasses.dataclass(frozen=True, eq=False)
class Around:
    """A learner with other updates."""

    learner: PPOLearner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)


class ExtraGradient(Around):
    """z ← z + Δ(z + Δ(z))."""

    def update(self, state: PPOState) -> tuple[PPOState, Any]:
        ahead, _ = self.learner.update(state)
        after, metrics = self.learner.update(ahead)
        z = jax.tree.map(
            lambda old, half, new: old + (new - half),
            *(each.parameters for each in (state, ahead, after)),
        )
        return dataclasses.replace(after, parameters=z), metrics


@dataclasses.dataclass(frozen=True, eq=False)
class OneSide(Around):
    """One team learns, the other stands still."""

    side: int = 0

    def update(self, state: PPOState) -> tuple[PPOState, Any]:
        after, metrics = self.learner.update(state)
        sides = [state.parameters, state.parameters]
        sides[self.side] = after.parameters
        return dataclasses.replace(after, parameters=teams(*sides, axis=0)), metrics


WAYS = {"simultaneous": (lambda learner: learner, 1), "extra-gradient": (ExtraGradient, 2)}
"""What is put around the learner, and roll-outs of an update."""


def teams(pursuers: Any, evader: Any, axis: int = 1) -> Any:
    """One's pursuers and another's evader; sets of parameters are along an axis."""

    def joined(a: jax.Array, b: jax.Array) -> jax.Array:
        first, second = (jnp.take(x, jnp.array([i]), axis) for i, x in enumerate((a, b)))
        return jnp.concatenate([first, second], axis)

    return jax.tree.map(joined, pursuers, evader)


def built(steps: int) -> tuple[Config, Any, PPOLearner]:
    environment = make(GAME)
    given = {"parameter_sharing": "team"}
    settings = algorithms.settings("ippo", environment.family, given)
    config = Config(GAME, "ippo", settings, steps, seeds=SEEDS)
    alike = aggregate.resolve(aggregate.parse("mean"), 1)
    learner = algorithms.build(config, environment, alike)
    assert isinstance(learner, PPOLearner)
    return config, environment, learner


def trained(learner: Any, updates: int, start: Any = None) -> Any:
    """Parameters [S, …] of all seeds."""
    program = Program(learner, jax.devices()[:1], 0, SEEDS)
    state = program.start()
    if start is not None:
        state = dataclasses.replace(state, parameters=jax.tree.map(lambda x: x[None], start))
    for done in range(0, updates, AT_ONCE):
        state, _ = program.run(state, min(AT_ONCE, updates - done))
    return jax.tree.map(jnp.asarray, program.parameters(state))


def returns(learner: Any, environment: Any, parameters: Any) -> np.ndarray:
    """[S, 2] mean return of each side."""
    found = evaluate(learner, environment, parameters, "sampled", episodes=EPISODES, seed=1_000_003)
    team = np.array(environment.teams)
    return np.array(
        [
            [each.by_agent[:, team == side].mean(dtype=np.float64) for side in (0, 1)]
            for each in found
        ]
    )


def cross_play(learner: Any, environment: Any, policies: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for one, pursuers in policies.items():
        for other, evaders in policies.items():
            by_seed = np.stack(
                [
                    returns(learner, environment, teams(pursuers, rolled(evaders, shift)))
                    for shift in range(SEEDS)
                ]
            )
            rows.append({
                "pursuers": one, "evader": other,
                "return": by_seed.mean((0, 1)).tolist(),
                "by_seed_of_pursuers": by_seed[..., 0].mean(0).tolist(),
            })  # fmt: skip
            show(rows[-1])
    return rows


def rolled(parameters: Any, shift: int) -> Any:
    return jax.tree.map(lambda x: jnp.roll(x, shift, 0), parameters)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--responses", action="store_true")
    responses = parser.parse_args().responses
    config, environment, learner = built(STEPS)
    result: dict[str, Any] = {"ways": [], "cross_play": [], "exploited": []}
    policies = {}
    for name, (around, rollouts) in WAYS.items():
        began = time.perf_counter()
        policies[name] = trained(around(learner), config.updates // rollouts)
        own = returns(learner, environment, policies[name])
        minutes = (time.perf_counter() - began) / 60
        result["ways"].append({"way": name, "return": own.tolist(), "minutes": minutes})
        show(result["ways"][-1])
        write(result)
    result["cross_play"] = cross_play(learner, environment, policies)
    write(result)
    if responses:
        exploit(learner, environment, policies, result)


def exploit(
    learner: PPOLearner, environment: Any, policies: dict[str, Any], result: dict[str, Any]
) -> None:
    """Adds what each side gains by going on alone."""
    response, _, answering = built(RESPONSE_STEPS)
    for name, parameters in policies.items():
        before = returns(learner, environment, parameters)
        for side, who in enumerate(SIDES):
            answer = trained(OneSide(answering, side), response.updates, parameters)
            gain = returns(learner, environment, answer)[:, side] - before[:, side]
            result["exploited"].append({"way": name, "learns": who, "gain": gain.tolist()})
            show(result["exploited"][-1])
            write(result)


def write(result: dict[str, Any]) -> None:
    record(
        "saddle_games",
        libraries=("jax", "jaxlib", "optax", "jaxmarl"),
        seeds=list(range(SEEDS)),
        steps=STEPS,
        response_steps=RESPONSE_STEPS,
        episodes=EPISODES,
        **result,
    )


if __name__ == "__main__":
    main()
