"""A finished training, read from its folder: to play, evaluate or draw."""

from pathlib import Path
from typing import Any

from gradweave.errors import FileError, OptionError
from gradweave.marl import checkpoint
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import is_object, make
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.own_network import Factory, named
from gradweave.marl.trained import POLICY, Trained, begun
from gradweave.marl.training import check_environment, load_policy


def load(
    folder: Path, *, environment: Environment | None = None, network: Factory | None = None
) -> Trained:
    """Reads a finished training, with its environment and algorithm.

    Args:
        folder: that `train` was given. What it says is not imported.
        environment: that was learned; needed where it was named as ``module:object``.
        network: what made the networks; needed where they are not Gradweave's own.

    Returns:
        The same as `train` returned, but for what is of that run alone: all updates were made
        before, at no speed.

    Raises:
        FileError: where there is no policy, or none that can be used.
        OptionError: where its environment cannot be made here, or another is given.
    """
    path = folder / POLICY
    if not path.exists():
        if begun(folder) is not None:
            raise FileError(
                f"{folder}: has no {POLICY} yet: the training is not at its end; train again with "
                "the same options to go on"
            )
        raise FileError(f"{folder}: there is no {POLICY}; give the folder of a training")
    about = checkpoint.about(path)
    config_fields, extended = about.get("config"), about.get("extended", [])
    if not isinstance(config_fields, dict) or not isinstance(extended, list):
        raise FileError(f"{path}: does not say what training it is of")
    try:
        config = algorithms.config_of(config_fields)
    except (OptionError, TypeError) as error:
        raise FileError(f"{path}: {error}") from error
    check_environment(config, environment)
    if environment is None:
        if is_object(config.env):
            raise OptionError(
                f"{path}: its game is {config.env}, which no file may import: give --env, or "
                "environment= in Python"
            )
        environment = make(config.env, **config.options)
    if config.network is not None and network is None:
        raise OptionError(
            f"{path}: its network is {config.network}, which no file may import: give --network, "
            "or network= in Python"
        )
    learner = algorithms.build(config, environment, lambda optimizer: optimizer, network)
    parameters = load_policy(folder, learner, config)
    return Trained(
        config, environment, learner, parameters, config.updates, None, extended=tuple(extended)
    )


def imported(folder: Path, env: str | None, network: str | None) -> dict[str, Any]:
    """What `load` is to be given besides a folder, of what a command names.

    Args:
        folder: of the training, whose options the game gets.
        env: the game that was learned, as ``module:object``; None where the folder's is enough.
        network: what made the networks; None where none did.

    Raises:
        OptionError: one of them is not what the folder has, or cannot be imported.
        FileError: the folder cannot be read.
    """
    kept = checkpoint.about(folder / POLICY).get("config", {}) if env or network else {}
    for what, given in (("env", env), ("network", network)):
        if given is not None and given != kept.get(what):
            raise OptionError(f"--{what}: expected {kept.get(what)}, got {given}")
    found: dict[str, Any] = {}
    if env is not None:
        found["environment"] = make(env, **kept.get("options", {}))
    if network is not None:
        found["network"] = named(network)
    return found
