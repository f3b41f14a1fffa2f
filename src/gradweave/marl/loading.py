"""A finished training, read from its folder: to play, evaluate or draw."""

from pathlib import Path

from gradweave.errors import FileError, OptionError
from gradweave.marl import checkpoint
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.trained import POLICY, Trained, begun
from gradweave.marl.training import load_policy


def load(folder: Path) -> Trained:
    """Reads a finished training, with its environment and algorithm.

    Args:
        folder: that `train` was given.

    Returns:
        The same as `train` returned, but for what is of that run alone: all updates were made
        before, at no speed.

    Raises:
        FileError: where there is no policy, or none that can be used.
        OptionError: where its environment cannot be made here.
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
    environment = make(config.env, **config.options)
    learner = algorithms.build(config, environment, lambda optimizer: optimizer)
    parameters = load_policy(folder, learner, config)
    return Trained(
        config, environment, learner, parameters, config.updates, None, extended=tuple(extended)
    )
