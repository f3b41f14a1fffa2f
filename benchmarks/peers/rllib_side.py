"""RLlib's side of `experiments/rllib.py`, in a virtual environment without JAX and Gradweave.

    python rllib_side.py play OUTPUT.npz SEED EPISODES     plays random actions in mpe2's game
    python rllib_side.py train SETTINGS.json               trains PPO; a line of JSON per update

The game is `mpe2.simple_spread_v3`, wrapped for RLlib: agents' indices are appended to observations
as one-hot vectors, and the end of an episode is a termination, as by default in Gradweave, rather
than a truncation.
"""

from __future__ import annotations  # Ray pickles classes without names used in annotations only

import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3

AGENTS, EPISODE = 3, 25
CROWDED = 0.35
"""Half the width of the start positions in every second episode: agents then collide often."""


def play(path: str, seed: int, episodes: int) -> None:
    """Plays random actions from random positions, and stores observations, rewards and states."""
    draw = np.random.default_rng(seed)
    env = simple_spread_v3.parallel_env(max_cycles=EPISODE)
    names = list(env.possible_agents)
    rows: dict[str, list] = {key: [] for key in ("action", "seen", "reward", "over", "p", "v")}
    for episode in range(episodes):
        env.reset(seed=int(draw.integers(2**31)))
        world = env.unwrapped.world
        half = CROWDED if episode % 2 else 1.0
        for thing in world.entities:
            thing.state.p_pos = draw.uniform(-half, half, 2)
        game: dict[str, list] = {key: [] for key in rows}

        def keep_state(game: dict[str, list] = game, world: Any = world) -> None:
            game["p"].append([np.array(thing.state.p_pos) for thing in world.entities])
            game["v"].append([np.array(thing.state.p_vel) for thing in world.entities])

        keep_state()
        while env.agents:
            action = draw.integers(5, size=AGENTS)
            seen, reward, ended, cut, _ = env.step(
                {name: int(action[i]) for i, name in enumerate(names)}
            )
            game["action"].append(action)
            game["seen"].append([seen[name] for name in names])
            game["reward"].append([reward[name] for name in names])
            game["over"].append([ended[name] or cut[name] for name in names])
            keep_state()
        for key, values in game.items():
            rows[key].append(values)
    np.savez(path, **{key: np.array(values) for key, values in rows.items()})


def environment(context: Any) -> Any:
    """The game for RLlib; seeds of its runners are consecutive and would repeat games."""
    import gymnasium as gym
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

    class Spread(ParallelPettingZooEnv):
        def __init__(self) -> None:
            super().__init__(simple_spread_v3.parallel_env(max_cycles=EPISODE))
            self.agents = self.possible_agents = list(self.par_env.possible_agents)
            who = np.eye(AGENTS, dtype=np.float32)
            self.who = {agent: who[i] for i, agent in enumerate(self.agents)}
            size = self.par_env.observation_space(self.agents[0]).shape[0] + AGENTS
            seen = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
            action = self.par_env.action_space(self.agents[0])
            self.observation_spaces = dict.fromkeys(self.agents, seen)
            self.action_spaces = dict.fromkeys(self.agents, action)
            self.observation_space = gym.spaces.Dict(self.observation_spaces)
            self.action_space = gym.spaces.Dict(self.action_spaces)

        def seen(self, seen: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {agent: np.concatenate([x, self.who[agent]]) for agent, x in seen.items()}

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if seed is not None:
                seed += 100_000 * context.worker_index
            seen, info = super().reset(seed=seed, options=options)
            return self.seen(seen), info

        def step(self, action_dict: Any) -> Any:
            seen, reward, _, cut, info = super().step(action_dict)
            return self.seen(seen), reward, cut, dict.fromkeys(cut, False), info

    return Spread()


def counting() -> Any:
    """Sums the returns of episodes, whose fragments arrive in different samples.

    RLlib's own mean is over the last episodes of each runner rather than all of an update.
    """
    earned: dict[str, float] = {}

    def count(*, metrics_logger: Any, samples: Any, **_: Any) -> None:
        for piece in samples:
            earned[piece.id_] = earned.get(piece.id_, 0.0) + piece.get_return()
            if piece.is_done:
                total = earned.pop(piece.id_)
                metrics_logger.log_value("returns", total, reduce="lifetime_sum")
                metrics_logger.log_value("returned", 1, reduce="lifetime_sum")

    return count


def configured(options: dict[str, Any]) -> Any:
    """RLlib's PPO with these settings."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    learners = options["learners"]
    parts = max(learners, 1)
    network = DefaultModelConfig(
        fcnet_hiddens=list(options["hidden"]),
        fcnet_activation="tanh",
        head_fcnet_hiddens=[],
        vf_share_layers=False,
    )
    runners = options["env_runners"]
    return (
        PPOConfig()
        .environment("spread")
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda *_, **__: "shared")
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=options["environments"] // runners,
            rollout_fragment_length=options["rollout"],
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=learners, num_gpus_per_learner=0)
        .rl_module(model_config=network)
        .training(
            train_batch_size_per_learner=options["environments"] * options["rollout"] // parts,
            minibatch_size=options["minibatch_rows"] // parts,
            num_epochs=options["epochs"],
            lr=options["learning_rate"],
            gamma=options["discount"],
            lambda_=options["gae_lambda"],
            clip_param=options["clip_ratio"],
            entropy_coeff=options["entropy_coefficient"],
            # RLlib's value loss is the squared error, others' half of it.
            vf_loss_coeff=options["value_coefficient"] / 2,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            kl_coeff=0.0,
            grad_clip=options["max_gradient_norm"],
            grad_clip_by="global_norm",
        )
        .callbacks(on_sample_end=counting())
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0)
        .debugging(seed=1000 * options["seed"], log_level="ERROR")
    )


def initialise(algorithm: Any, seed: int) -> dict[str, list[int]]:
    """Draws parameters and sets Adam's ε as Gradweave does; returns the shapes by name."""
    import torch

    def drawn(name: str, old: np.ndarray) -> np.ndarray:
        if not name.endswith("weight"):
            return old * 0.0 if name.endswith("bias") else old
        gain = 0.01 if name.startswith("pi.") else 1.0 if name.startswith("vf.") else 2**0.5
        return torch.nn.init.orthogonal_(torch.empty(old.shape), gain).numpy()

    def set_epsilon(learner: Any) -> None:
        for _, optimizer in learner.get_optimizers_for_module("shared"):
            for group in optimizer.param_groups:
                group["eps"] = 1e-5

    torch.manual_seed(seed)
    learners = algorithm.learner_group
    old = learners.get_weights()["shared"]
    new = {name: drawn(name, np.array(x)) for name, x in old.items()}
    learners.set_weights({"shared": new})
    learners.foreach_learner(set_epsilon)
    algorithm.env_runner_group.sync_weights(
        from_worker_or_learner_group=learners, policies=["shared"], inference_only=True
    )
    return {name: list(x.shape) for name, x in new.items() if name.endswith(("weight", "bias"))}


def train(path: str) -> None:
    """Trains, and prints after each update the time, the steps and the mean return."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.tune.registry import register_env

    with open(path) as file:
        options = json.load(file)
    # A nominal number of processors, so that all of Ray's processes can start at once.
    ray.init(
        num_cpus=8, include_dashboard=False, log_to_driver=False, _temp_dir=options["folder"],
        object_store_memory=10**9,
    )  # fmt: skip
    register_env("spread", environment)
    algorithm = configured(options).build_algo()
    try:
        say(
            parameters=initialise(algorithm, options["seed"]),
            versions={name: version(name) for name in ("ray", "torch", "mpe2", "numpy")},
        )
        before = np.zeros(2)
        for _ in range(options["updates"]):
            result = algorithm.train()
            played = result["env_runners"]
            after = np.array([played["returns"], played["returned"]])
            total, episodes = after - before
            before = after
            say(
                steps=int(played["num_env_steps_sampled_lifetime"]),
                mean_return=total / episodes / AGENTS,
                episodes=int(episodes),
                reported=float(played["episode_return_mean"]) / AGENTS,
                timers={
                    name: float(value)
                    for name, value in result["timers"].items()
                    if isinstance(value, int | float)
                },
            )
    finally:
        algorithm.stop()
        ray.shutdown()


def say(**report: Any) -> None:
    """Prints a line for the other side."""
    print("@" + json.dumps({"at": time.time(), **report}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "play":
        play(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        train(sys.argv[2])
