"""A pytree of parameters as one vector, and the vector's ranges, one per server."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError

TYPES = ("float16", "float32")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of a pytree in a vector: its leaves in order, each flattened row by row."""

    template: Any
    """The pytree, with its arrays replaced by their shapes and types."""

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Shape of each leaf."""
        return jax.tree.leaves(self.template)

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(shape.size for shape in self.shapes)

    @property
    def dtype(self) -> np.dtype:
        """Type of every element."""
        return np.dtype(self.shapes[0].dtype)

    def flat(self, tree: Any) -> jax.Array:
        """The vector [size] of a pytree; works inside `jax.jit`."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    def tree(self, vector: Any) -> Any:
        """The pytree of a vector [size]; works inside `jax.jit`."""
        leaves, begin = [], 0
        for shape in self.shapes:
            leaves.append(vector[begin : begin + shape.size].reshape(shape.shape))
            begin += shape.size
        return jax.tree.unflatten(jax.tree.structure(self.template), leaves)

    def names(self) -> str:
        """Names, shapes and types of all leaves, for a fingerprint."""
        leaves = jax.tree_util.tree_flatten_with_path(self.template)[0]
        return "; ".join(f"{jax.tree_util.keystr(path)} {x.dtype}{x.shape}" for path, x in leaves)


def layout(params: Any) -> Layout:
    """The layout of parameters.

    Raises:
        OptionError: there are no parameters, or they do not all have the same floating-point type.
    """
    leaves = jax.tree.leaves(params)
    if not leaves:
        raise OptionError("params: expected at least one array, got none")
    kinds = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves})
    if len(kinds) > 1 or kinds[0] not in TYPES:
        raise OptionError(
            f"params: expected arrays of one type among {', '.join(TYPES)}, got "
            f"{', '.join(kinds)}; convert them, or remove arrays that are not trained from params"
        )
    template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    whole = Layout(template)
    if whole.size == 0:
        raise OptionError("params: expected at least one element, got empty arrays")
    return whole


def ranges(size: int, servers: int) -> tuple[tuple[int, int], ...]:
    """Balanced contiguous ranges, whose lengths differ by at most 1, longer ranges first.

    Args:
        size: number of elements to divide.
        servers: number of ranges.

    Returns:
        Begin and end of each range.

    Raises:
        OptionError: a range would be empty.

    >>> ranges(10, 3)
    ((0, 4), (4, 7), (7, 10))
    """
    if not 1 <= servers <= size:
        raise OptionError(f"servers: expected 1 to {size}, the number of parameters, got {servers}")
    length, longer = divmod(size, servers)
    bounds = [server * length + min(server, longer) for server in range(servers + 1)]
    return tuple(itertools.pairwise(bounds))


def to_host(params: Any, layout: Layout) -> NDArray[Any]:
    """The vector of parameters as a NumPy array."""
    return np.asarray(jax.device_get(layout.flat(params)))
