"""Reads a finished training from its folder, in order to play, evaluate or draw its policy."""

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


def load_trained(
    folder: Path, *, environment: Environment | None = None, network: Factory | None = None
) -> Trained:
    """Reads a finished training, with its environment and algorithm.

    Args:
        folder: the folder that was passed to `train`. No code that it names is imported.
        environment: the environment of the training; required if it was named as ``module:object``.
        network: the factory of the networks; required if the training did not use Gradweave's.

    Returns:
        The result that `train` returned, without the facts about that run: it counts all updates as
        resumed, and has no speed.

    Raises:
        FileError: there is no policy, or it cannot be used.
        OptionError: the environment cannot be made here, or differs from that of the training.
    """
    path = folder / POLICY
    if not path.exists():
        if begun(folder) is not None:
            raise FileError(
                f"{folder}: has no {POLICY} yet, because the training has not finished; train "
                "again with the same options to continue it"
            )
        raise FileError(f"{folder}: there is no {POLICY}; give the folder of a training")
    about = checkpoint.about(path)
    config_fields, extended = about.get("config"), about.get("extended", [])
    if not isinstance(config_fields, dict) or not isinstance(extended, list):
        raise FileError(f"{path}: does not say which training it belongs to")
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
    """Arguments of `load` for the objects that a command names as ``module:object``.

    Args:
        folder: folder of the training, whose options the game gets.
        env: the game of the training, or None if the folder's metadata suffices.
        network: the factory of the networks, or None if the training used Gradweave's.

    Raises:
        OptionError: an object is not the training's, or cannot be imported.
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
