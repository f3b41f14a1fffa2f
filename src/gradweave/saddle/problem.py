"""Problems: an operator per worker; the solution is where their mean vanishes.

A saddle point of mean_m f_m(x, y), a minimum in x and a maximum in y, is where the mean of the
operators F_m(x, y) = (∇_x f_m, −∇_y f_m) is zero.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradweave.errors import OptionError
from gradweave.execute.jax_mesh.buffers import PyTree

Operator = Callable[[Any, PyTree, jax.Array], PyTree]
"""(a worker's data, z, random key) → F_m(z, ξ), a tree like z."""
Loss = Callable[[Any, PyTree, PyTree, jax.Array], jax.Array]
"""(a worker's data, the part that minimises, the part that maximises, random key) → []."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Find z with mean_m F_m(z) = 0.

    Raises:
        OptionError: the data have different numbers of workers, or z is not float32 or float64.
    """

    operator: Operator
    """F_m; deterministic if it does not use the key."""
    data: PyTree
    """[N, …] each worker's data: its samples, matrices, or its number."""
    start: PyTree
    """Initial z of all workers."""
    solution: PyTree | None = None
    """z*, if it is known."""
    name: str = "problem"
    workers: int = dataclasses.field(init=False)
    """N, the number of workers."""

    def __post_init__(self) -> None:
        lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(self.data)}
        if len(lengths) != 1 or lengths == {()}:
            raise OptionError(
                f"{self.name}: expected data with one leading axis, of the workers, in all arrays; "
                f"got axes of {sorted(lengths)}; use numpy.arange(N) if nothing else differs"
            )
        (((workers,)),) = lengths
        object.__setattr__(self, "workers", workers)
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.start):
            if jnp.asarray(leaf).dtype not in (jnp.float32, jnp.float64):
                name = jax.tree_util.keystr(path) or "the variable"
                raise OptionError(
                    f"{self.name}: {name}: expected float32 or float64, which are precise enough "
                    f"for sums over neighbours, got {jnp.asarray(leaf).dtype}"
                )

    @classmethod
    def of_loss(
        cls, loss: Loss, data: PyTree, minimise: PyTree, maximise: PyTree, name: str = "saddle"
    ) -> "Problem":
        """The problem min over one part, max over the other, of the mean of all workers' losses.

        Args:
            loss: loss of one worker.
            data: [N, …] data of each worker.
            minimise: initial value of the part that minimises.
            maximise: initial value of the part that maximises.
            name: name for messages.

        Returns:
            The problem, in z = {"min": …, "max": …}.

        >>> import jax.numpy as jnp
        >>> loss = lambda data, x, y, key: data * x * y
        >>> problem = Problem.of_loss(loss, jnp.array([1.0, 3.0]), jnp.ones(()), jnp.ones(()))
        >>> mean = problem.mean(problem.start)
        >>> float(mean["min"]), float(mean["max"])
        (2.0, -2.0)
        """

        def operator(mine: Any, z: PyTree, key: jax.Array) -> PyTree:
            down, up = jax.grad(loss, (1, 2))(mine, z["min"], z["max"], key)
            return {"min": down, "max": jax.tree.map(jnp.negative, up)}

        return cls(operator, data, {"min": minimise, "max": maximise}, name=name)

    def mean(self, z: PyTree, key: jax.Array | None = None) -> PyTree:
        """mean_m F_m(z), with a different key per worker."""
        keys = jax.random.split(jax.random.key(0) if key is None else key, self.workers)
        values = jax.vmap(self.operator, (0, None, 0))(self.data, z, keys)
        return jax.tree.map(lambda leaf: leaf.mean(0), values)

    def squared_distance(self, z: PyTree) -> jax.Array:
        """‖z − z*‖².

        Raises:
            OptionError: the solution is not known.
        """
        if self.solution is None:
            raise OptionError(f"{self.name}: its solution is not known; give another measure")
        parts = jax.tree.map(lambda a, b: ((a - b) ** 2).sum(), z, self.solution)
        return sum(jax.tree.leaves(parts), jnp.zeros(()))
