"""The text that ships with the package, its sources, as tokens."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import FileError
from gradweave.placement.workload import Transformer

_PACKAGE = Path(__file__).parents[2]


def characters(path: Path | None = None) -> NDArray[np.uint8]:
    """[length] the characters of a text, below 128; others become question marks.

    Args:
        path: path of a file; the package's sources if not given.

    Raises:
        FileError: it cannot be read.
    """
    files = [path] if path is not None else sorted(_PACKAGE.rglob("*.py"))
    try:
        text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8)


def batch(text: NDArray[np.uint8], model: Transformer, step: int, seed: int) -> NDArray[np.int64]:
    """[batch, sequence + 1] sequences for a step, over all pipelines.

    Args:
        text: see `characters`.
        model: gives the number and length of sequences.
        step: from 0.
        seed: seed of the choice of sequences.

    Raises:
        FileError: the text is shorter than a sequence.
    """
    last = len(text) - model.sequence - 1
    if last < 0:
        raise FileError(
            f"text: expected more than {model.sequence} characters, a sequence, got {len(text)}"
        )
    rng = np.random.default_rng([seed, step])
    starts = rng.integers(0, last + 1, model.batch)
    return text[starts[:, None] + np.arange(model.sequence + 1)].astype(np.int64)
