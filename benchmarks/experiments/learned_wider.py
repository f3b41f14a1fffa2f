"""Policies trained on wider exercises than the shipped ones: their training, and what they reach.

    python benchmarks/experiments/learned_wider.py            trains first
    python benchmarks/experiments/learned_wider.py FOLDER     reads the output of a training

A training is `python -m gradweave.learning`.

Trained as `benchmarks/wider_exercises.toml` says, on one device; then decoded on the networks of
learned_decoding.py, in the same way.
"""

from pathlib import Path

from benchmarks.command_line import parser_of
from benchmarks.experiments import learned_decoding, shipped_training
from benchmarks.record import record
from gradweave.learning.config import read_config
from gradweave.learning.policies.policy import read_weights
from gradweave.learning.training import WEIGHTS

CONFIG = Path(__file__).parents[1] / "wider_exercises.toml"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="output of gradweave.learning")
    options = ("--config", str(CONFIG), "--devices", "1")
    folder = shipped_training.trained(parser.parse_args().folder, *options)
    content = shipped_training.cost_and_curve(shipped_training.rows_of(folder), read_config(CONFIG))
    decoded = learned_decoding.rows_of(read_weights(folder / WEIGHTS))
    record("learned_wider", **content, decoded=decoded)


if __name__ == "__main__":
    main()
