"""Lossy messages: fewer bits for a vector, with bounds on the error.

A compressor turns a vector into a payload, a pytree of arrays that really are as small as stated
(bits are packed into words), and a payload back into a vector. Its error is bounded in two ways,
each a root mean square over its random numbers that holds for every vector:

- `relative_error`: α, with E‖C(z) − z‖² ≤ α²‖z‖². Difference compression (DCD, CHOCO) needs it.
- `absolute_error`: σ, with E‖C(z) − z‖² ≤ σ². Extrapolation compression (ECD) needs it.

Infinity means that there is no such bound. Vectors are JAX's arrays or PyTorch's tensors, and give
the same payloads in both up to rounding. Compressors can be made and checked without either
framework.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, ClassVar

from gradweave.aggregate.arrays import Array, Key, PyTree, arrays_of
from gradweave.aggregate.bits import pack, unpack
from gradweave.common.checks import check_above_zero
from gradweave.errors import OptionError


class Compressor(abc.ABC):
    """Vectors to payloads and back."""

    name: ClassVar[str]
    unbiased: ClassVar[bool]
    """Whether E C(z) = z."""

    @abc.abstractmethod
    def relative_error(self, size: int) -> float:
        """α for vectors of `size` elements."""

    @abc.abstractmethod
    def absolute_error(self, size: int) -> float:
        """σ for vectors of `size` elements, in their unit."""

    @abc.abstractmethod
    def compress(self, key: Key, vector: Array) -> PyTree:
        """[size] → payload. The key determines all random numbers."""

    @abc.abstractmethod
    def decompress(self, payload: PyTree, size: int, dtype: Any) -> Array:
        """Payload → [size]. The result has the same bits at every worker."""


@dataclasses.dataclass(frozen=True)
class Uncompressed(Compressor):
    """Sends the vector unchanged."""

    name: ClassVar[str] = "uncompressed"
    unbiased: ClassVar[bool] = True

    def relative_error(self, size: int) -> float:
        """α."""
        return 0.0

    def absolute_error(self, size: int) -> float:
        """σ."""
        return 0.0

    def compress(self, key: Key, vector: Array) -> PyTree:
        """[size] → payload."""
        return vector

    def decompress(self, payload: PyTree, size: int, dtype: Any) -> Array:
        """Payload → [size]."""
        return arrays_of(payload).cast(payload, dtype)


@dataclasses.dataclass(frozen=True)
class MaxNorm(Compressor):
    """Rounds randomly, up or down, to equally spaced levels from −m to m, the largest magnitude.

    With b bits there are 2^b − 1 levels, L = 2^(b−1) − 1 of them on either side of zero. Each block
    of elements has its m, of 4 bytes.

    The largest relative error occurs for a block with one large element and others of one size p
    between zero and the first level: E‖C(z) − z‖² / ‖z‖² = c·p(1 − p) / (1 + c·p²) with c = (d −
    1)/L², whose maximum (√(1 + c) − 1)/2 is at p = (√(1 + c) − 1)/c. So small blocks and many bits
    are safe, and no number of bits is enough for blocks of any size.

    Source: Tang et al. 2018, section 5; Alistarh et al. 2017 (QSGD) for the rounding.
    """

    name: ClassVar[str] = "max_norm"
    unbiased: ClassVar[bool] = True

    bits: int = 8
    """Bits per element."""
    block: int | None = 128
    """Number of elements that share an m, or None for the whole vector."""

    def __post_init__(self) -> None:
        _check_range("bits", self.bits, 2, 16)
        if self.block is not None:
            _check_range("block", self.block, 1, 1 << 30)

    @property
    def levels(self) -> int:
        """L."""
        return 2 ** (self.bits - 1) - 1

    def relative_error(self, size: int) -> float:
        """α."""
        c = (self._block(size) - 1) / self.levels**2
        return math.sqrt(max(0.0, (math.sqrt(1 + c) - 1) / 2))

    def absolute_error(self, size: int) -> float:
        """σ."""
        return math.inf if self._block(size) > 1 else 0.0

    def compress(self, key: Key, vector: Array) -> PyTree:
        """[size] → payload."""
        arrays, size = arrays_of(vector), len(vector)
        block = self._block(size)
        blocks = -(-size // block)
        rows = arrays.padded(vector, blocks * block).reshape(blocks, block)
        rows = arrays.cast(rows, arrays.float32)
        largest = arrays.row_maxima(abs(rows))
        scaled = rows / arrays.where(largest > 0, largest, 1.0)[:, None] * self.levels
        codes = arrays.floor(scaled + arrays.uniform(key, rows))
        codes = arrays.clip(codes, -self.levels, self.levels) + self.levels
        return {"largest": largest, "codes": pack(codes.reshape(-1)[:size], self.bits)}

    def decompress(self, payload: PyTree, size: int, dtype: Any) -> Array:
        """Payload → [size]."""
        largest = payload["largest"]
        arrays, block = arrays_of(largest), self._block(size)
        codes = unpack(payload["codes"], self.bits, size)
        levels = arrays.cast(codes, arrays.float32) - self.levels
        rows = arrays.padded(levels, len(largest) * block).reshape(len(largest), block)
        rows = rows * (largest / self.levels)[:, None]
        return arrays.cast(rows.reshape(-1)[:size], dtype)

    def _block(self, size: int) -> int:
        return max(1, size if self.block is None else min(self.block, size))


@dataclasses.dataclass(frozen=True)
class Grid(Compressor):
    """Rounds randomly, up or down, to multiples of a step that is the same for all vectors.

    The error is at most step·√d / 2 even for small vectors, so it is not relative to the vector.
    Numbers beyond ±step·(2^(b−1) − 1) are clipped, and the bounds do not hold for them. Elements
    that are not finite arrive as NaN, encoded by the code that the 2^b − 1 levels leave unused.
    """

    name: ClassVar[str] = "grid"
    unbiased: ClassVar[bool] = True

    step: float = 1e-3
    """Distance between neighbouring values, in the parameters' unit."""
    bits: int = 16
    """Bits per element, which limit the range of the grid."""

    def __post_init__(self) -> None:
        check_above_zero(self, "step")
        _check_range("bits", self.bits, 2, 16)

    def relative_error(self, size: int) -> float:
        """α."""
        return math.inf

    def absolute_error(self, size: int) -> float:
        """σ."""
        return self.step * math.sqrt(size) / 2

    def compress(self, key: Key, vector: Array) -> PyTree:
        """[size] → payload."""
        arrays, reach = arrays_of(vector), self._reach
        steps = arrays.cast(vector, arrays.float32) / self.step
        codes = arrays.floor(steps + arrays.uniform(key, vector))
        codes = arrays.clip(codes, -reach, reach) + reach
        codes = arrays.where(arrays.is_finite(vector), codes, 2.0 * reach + 1)
        return {"codes": pack(codes, self.bits)}

    def decompress(self, payload: PyTree, size: int, dtype: Any) -> Array:
        """Payload → [size]."""
        arrays = arrays_of(payload["codes"])
        codes = unpack(payload["codes"], self.bits, size)
        numbers = (arrays.cast(codes, arrays.float32) - self._reach) * self.step
        return arrays.cast(arrays.where(codes > 2 * self._reach, math.nan, numbers), dtype)

    @property
    def _reach(self) -> int:
        """The number of levels on either side of zero."""
        return 2 ** (self.bits - 1) - 1


@dataclasses.dataclass(frozen=True)
class RandomK(Compressor):
    """Sends random elements, with a random key instead of their indices.

    Unbiased: the received vector is scaled by d/k, so α = √(d/k − 1), which exceeds 1 if less than
    half of the elements are sent.

    Source: Stich, Cordonnier and Jaggi 2018; Wangni et al. 2018.
    """

    name: ClassVar[str] = "random_k"
    unbiased: ClassVar[bool] = True

    share: float = 0.25
    """k/d, the share of elements that are sent; at least one is."""

    def __post_init__(self) -> None:
        _check_share(self.share)

    def relative_error(self, size: int) -> float:
        """α."""
        return math.sqrt(size / _num_sent(self.share, size) - 1) if size else 0.0

    def absolute_error(self, size: int) -> float:
        """σ."""
        return 0.0 if _num_sent(self.share, size) == size else math.inf

    def compress(self, key: Key, vector: Array) -> PyTree:
        """[size] → payload."""
        seed = arrays_of(vector).seed(key, vector)
        return {"seed": seed, "values": vector[self._indices(seed, len(vector))]}

    def decompress(self, payload: PyTree, size: int, dtype: Any) -> Array:
        """Payload → [size]."""
        indices = self._indices(payload["seed"], size)
        kept = arrays_of(indices).placed(indices, payload["values"], size, dtype)
        return kept * self._scale(size)

    def _scale(self, size: int) -> float:
        return size / max(1, _num_sent(self.share, size))

    def _indices(self, seed: Array, size: int) -> Array:
        return arrays_of(seed).permutation(seed, size)[: _num_sent(self.share, size)]


@dataclasses.dataclass(frozen=True)
class RandomKUnscaled(RandomK):
    """Sends random elements unscaled.

    Biased; α = √(1 − k/d), which is below 1 for any share, as CHOCO-SGD requires.

    Source: Stich, Cordonnier and Jaggi 2018; Koloskova, Stich and Jaggi 2019.
    """

    name: ClassVar[str] = "random_k_unscaled"
    unbiased: ClassVar[bool] = False

    def relative_error(self, size: int) -> float:
        """α."""
        return _error_of_omission(self.share, size)

    def _scale(self, size: int) -> float:
        return 1.0


@dataclasses.dataclass(frozen=True)
class TopK(Compressor):
    """Sends the elements of largest magnitude and their indices.

    Biased; α = √(1 − k/d), attained if all magnitudes are equal.

    Source: Stich, Cordonnier and Jaggi 2018.
    """

    name: ClassVar[str] = "top_k"
    unbiased: ClassVar[bool] = False

    share: float = 0.01
    """k/d, the share of elements that are sent; at least one is."""

    def __post_init__(self) -> None:
        _check_share(self.share)

    def relative_error(self, size: int) -> float:
        """α."""
        return _error_of_omission(self.share, size)

    def absolute_error(self, size: int) -> float:
        """σ."""
        return 0.0 if _num_sent(self.share, size) == size else math.inf

    def compress(self, key: Key, vector: Array) -> PyTree:
        """[size] → payload."""
        arrays = arrays_of(vector)
        indices = arrays.top(abs(vector), _num_sent(self.share, len(vector)))
        return {"indices": arrays.words(indices), "values": vector[indices]}

    def decompress(self, payload: PyTree, size: int, dtype: Any) -> Array:
        """Payload → [size]."""
        arrays = arrays_of(payload["indices"])
        indices = arrays.indices(payload["indices"])
        return arrays.placed(indices, payload["values"], size, dtype)


@dataclasses.dataclass(frozen=True)
class TopKChunks(TopK):
    """Sends the elements of largest magnitude of each chunk, in two bits and a packed index each.

    An element's bits are its sign and which of two magnitudes it gets: the mean of those elements
    of the chunk that are above the mean magnitude, or the mean of the others. A chunk of 4096 with
    64 elements is 96 bytes of indices, 16 of bits, and 8 of magnitudes.

    Biased; the error is orthogonal to what arrives. α is a bound that is not attained: let k
    elements have the mean magnitude M, and those above M, n of them, the sum S. At least max(k·M²,
    S²/n) of the squared norm arrives. The squared norm of the k is at most 1 + max over n of n·(1 −
    (n − 1)/k)² times as much, and that of the others at most (d − k)/k times.

    Source: the sizes are those of SparseLoCo (Sarfi et al. 2025), for which 146 times fewer bytes
    than float32 are published, or 14 bits an element; with the magnitudes it is 136 times here. How
    that method chooses them was not at hand.
    """

    name: ClassVar[str] = "top_k_chunks"

    share: float = 1 / 64
    """k/d, the share of a chunk's elements that are sent; at least one is."""
    block: int = 4096
    """Number of elements of a chunk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range("block", self.block, 1, 1 << 16)

    def relative_error(self, size: int) -> float:
        """α, a bound."""
        block, kept = self._sizes(size)
        worst = max((n * (1 - (n - 1) / kept) ** 2 for n in range(1, kept)), default=0.0)
        return math.sqrt(1 - 1 / (block / kept + worst))

    def absolute_error(self, size: int) -> float:
        """σ."""
        return math.inf if size > 1 else 0.0

    def compress(self, key: Key, vector: Array) -> PyTree:
        """[size] → payload."""
        arrays, (block, kept) = arrays_of(vector), self._sizes(len(vector))
        chunks = -(-len(vector) // block)
        rows = arrays.padded(vector, chunks * block).reshape(chunks, block)
        rows = arrays.cast(rows, arrays.float32)
        indices = arrays.codes(arrays.top(abs(rows), kept))
        places = indices + arrays.up_to(chunks, vector)[:, None] * block
        values = rows.reshape(-1)[places.reshape(-1)].reshape(chunks, kept)
        magnitudes = abs(values)
        large = magnitudes > magnitudes.mean(1)[:, None]
        many = arrays.cast(large, arrays.float32).sum(1)
        above = arrays.where(large, magnitudes, 0.0).sum(1)
        below = arrays.where(large, 0.0, magnitudes).sum(1)
        bits = 2 * arrays.codes(large) + arrays.codes(values < 0)
        digits = (indices.reshape(-1)[:, None] >> self._shifts(block, vector)) & 15
        return {
            "indices": pack(digits.reshape(-1), 4),  # 12 bits at once would leave 8 of 32 unused
            "bits": pack(bits.reshape(-1), 2),
            "large": above / arrays.where(many > 0, many, 1.0),
            "small": below / arrays.where(many < kept, kept - many, 1.0),
        }

    def decompress(self, payload: PyTree, size: int, dtype: Any) -> Array:
        """Payload → [size]."""
        large, small = payload["large"], payload["small"]
        arrays, (block, kept), chunks = arrays_of(large), self._sizes(size), len(large)
        shifts = self._shifts(block, large)
        digits = unpack(payload["indices"], 4, chunks * kept * len(shifts))
        indices = (digits.reshape(chunks, kept, len(shifts)) << shifts).sum(-1)
        places = arrays.indices(indices) + arrays.up_to(chunks, large)[:, None] * block
        bits = unpack(payload["bits"], 2, chunks * kept).reshape(chunks, kept)
        values = arrays.where(bits > 1, large[:, None], small[:, None])
        values = arrays.where(bits % 2 == 1, -values, values).reshape(-1)
        return arrays.placed(places.reshape(-1), values, chunks * block, dtype)[:size]

    def _sizes(self, size: int) -> tuple[int, int]:
        """The number of elements of a chunk, and of those that are sent."""
        block = max(1, min(self.block, size))
        return block, _num_sent(self.share, block)

    @staticmethod
    def _shifts(block: int, like: Array) -> Array:
        """[digits] the number of bits that each digit of an index, of 4 bits, is shifted by."""
        return arrays_of(like).up_to(max(1, -(-(block - 1).bit_length() // 4)), like) * 4


COMPRESSORS: dict[str, type[Compressor]] = {
    kind.name: kind
    for kind in (Uncompressed, MaxNorm, Grid, RandomK, RandomKUnscaled, TopK, TopKChunks)
}
"""All compressors by name."""


def _num_sent(share: float, size: int) -> int:
    return min(size, max(1, round(share * size)))


def _error_of_omission(share: float, size: int) -> float:
    """α if all but a share of the elements are omitted."""
    return math.sqrt(1 - _num_sent(share, size) / size) if size else 0.0


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise OptionError(f"{name}: expected {least} to {most}, got {value}")


def _check_share(value: float) -> None:
    if not 0 < value <= 1:
        raise OptionError(f"share: expected a number above 0 and at most 1, got {value}")
