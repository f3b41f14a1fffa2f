"""Buffers that hold contribution counts, of every chunk of every rank, before and after."""

import dataclasses

import numpy as np

GARBAGE = -1000
"""What stands in memory that nobody has written: no count that comes to be right."""


class WrongCountError(AssertionError):
    """A chunk holds other contributions than it should."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """What a collective starts from and must come to.

    A chunk's content is a count for each rank and chunk of the whole message: how often that
    contribution is in it.
    """

    name: str
    ranks: int
    chunks: int
    """Of the whole message."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Chunks of the input and of the output."""
        whole, part = self.chunks, self.chunks // self.ranks
        return {
            "all_reduce": (whole, whole),
            "all_gather": (part, whole),
            "reduce_scatter": (whole, part),
        }[self.name]

    def memory(
        self, rank: int, scratch: int, in_place: bool, times: int = 1
    ) -> dict[str, np.ndarray]:
        """Input, output and scratch memory of a rank at the start.

        Its contributions count `times`, so that those of several runs can be told apart.
        """
        width = self.ranks * self.chunks
        part = self.chunks // self.ranks
        mine = slice(rank * part, rank * part + part)
        sizes = dict(zip("io", self.sizes, strict=True))
        held = {name: np.full((size, width), GARBAGE) for name, size in sizes.items()}
        if in_place:
            if self.name == "all_reduce":
                held["o"] = held["i"]
            elif self.name == "all_gather":
                held["i"] = held["o"][mine]
            else:
                held["o"] = held["i"][mine]
        held["s"] = np.full((scratch, width), GARBAGE)
        held["i"][:] = self._input(rank) * times
        return held

    def check(self, rank: int, held: dict[str, np.ndarray], in_place: bool, times: int = 1) -> None:
        """Compares a rank's memory with what the collective must come to."""
        wanted = self._output(rank) * times
        for chunk in np.flatnonzero((held["o"] != wanted).any(1)):
            raise WrongCountError(
                f"rank {rank}, chunk {chunk}: {held['o'][chunk]}, expected {wanted[chunk]}"
            )
        if not in_place and (held["i"] != self._input(rank) * times).any():
            raise WrongCountError(f"rank {rank}: the input was written")

    def _input(self, rank: int) -> np.ndarray:
        part = self.chunks // self.ranks
        first = rank * part if self.name == "all_gather" else 0
        return self._one_hot(rank, range(first, first + self.sizes[0]))

    def _output(self, rank: int) -> np.ndarray:
        part = self.chunks // self.ranks
        if self.name == "all_gather":
            return sum(
                self._one_hot(of, range(self.chunks))
                * (np.arange(self.chunks)[:, None] // part == of)
                for of in range(self.ranks)
            )
        first = rank * part if self.name == "reduce_scatter" else 0
        return sum(
            self._one_hot(of, range(first, first + self.sizes[1])) for of in range(self.ranks)
        )

    def _one_hot(self, rank: int, chunks: range) -> np.ndarray:
        held = np.zeros((len(chunks), self.ranks * self.chunks), np.int64)
        held[np.arange(len(chunks)), rank * self.chunks + np.array(chunks)] = 1
        return held
