"""Whether a method is expected to converge, measured on the problem before it is run."""

import dataclasses
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from gradweave.aggregate.sequences import Contraction, best_contraction, with_local_steps
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.execute.jax_mesh.buffers import PyTree
from gradweave.saddle.corrected import ProxSkip, Tracked, TrackedAdam
from gradweave.saddle.method import ExtraAdam, GradientDescentAscent
from gradweave.saddle.problem import Problem
from gradweave.saddle.solver import Solver

POWER_STEPS = 60
"""Number of power iterations: they give L to a few percent, which is enough for a limit on the
rate."""
SAMPLES = 8
"""Number of samples of noisy operators, at each point."""
ACCURACY = 1e-6
"""‖z̄ − z*‖²/‖z⁰ − z*‖² for which the number of iterations is stated."""
_RELATIVE = 1e-3
"""Threshold relative to L: smaller strengths are not distinguished from zero."""


@dataclasses.dataclass(frozen=True)
class Validity:
    """What is known about a choice before it is run. L, μ and D are estimates from a few points."""

    method: str
    mixing: str
    workers: int
    rate: float
    """γ in the first iteration."""
    rate_limit: float
    """1/(4L), the largest rate for which convergence is proved."""
    lipschitz: float
    """L, the largest Lipschitz constant of any worker's operator, by power iteration on its
    Jacobian."""
    strength: float
    """μ, the strong monotonicity of the mean operator: the smallest eigenvalue of its Jacobian's
    symmetric part; below 0 the operator is not monotone."""
    contraction: Contraction
    """p over τ iterations, with local steps included."""
    noise: float
    """σ, root mean square of ‖F_m(z, ξ) − F_m(z)‖."""
    heterogeneity: float
    """D, root mean square of ‖F_m(z) − F(z)‖ over the workers."""
    iterations: float
    """Number of iterations after which, in theory, the part of the error from the start is a
    millionth if the problem is strongly monotone: ln(10⁶)/(γμ) + τ/p; infinity if it is not."""
    impossible: tuple[str, ...]
    """Reasons why it cannot work."""
    doubts: tuple[str, ...]
    """Reasons why it may not work."""

    def __str__(self) -> str:
        of = self.contraction
        lines = [
            f"{self.method} on {self.mixing}, {counted(self.workers, 'worker')}: "
            f"L {self.lipschitz:.4g}, mu {self.strength:.2g}, "
            f"rate {self.rate:.4g} (limit {self.rate_limit:.4g})",
            f"p {of.expected:.4g} over {of.window} iterations (worst window {of.p:.4g}), "
            f"noise {self.noise:.3g}, heterogeneity {self.heterogeneity:.3g}; {self._promised}",
        ]
        lines += [f"cannot work: {reason}" for reason in self.impossible]
        lines += [f"in doubt: {reason}" for reason in self.doubts]
        return "\n".join(lines)

    @property
    def _promised(self) -> str:
        if math.isfinite(self.iterations):
            return f"{self.iterations:,.0f} iterations to a millionth of the start"
        if self.strength > -_RELATIVE * self.lipschitz:
            return "monotone, not strongly: the error of averages decreases as 1/iterations"
        return "not monotone: theory bounds the smallest norm of F, if there is a Minty solution"


def check_solver(
    solver: Solver, *, points: int = 3, radius: float = 1.0, seed: int = 0
) -> Validity:
    """Measures a problem at its start and around it, and compares the choice with theory.

    Args:
        solver: problem, method and network.
        points: number of points: the start, and random points around it.
        radius: root mean square distance of an element of these points from the start.
        seed: seed of points and samples.

    Source: Beznosikov et al. 2022, theorem 1, for the limit of γ; the number of iterations is that
    of extra-gradient with a rate up to that limit, ‖z − z*‖² ≤ (1 − γμ)^K.

    Raises:
        OptionError: the operator's values do not have z's shape.
    """
    _check_shape(solver.problem)
    keys = jax.random.split(jax.random.key(seed), points)
    measured = jax.jit(lambda keys: _measured(solver.problem, keys, radius))(keys)
    lipschitz, strength, noise, heterogeneity = (
        np.asarray(values, np.float64) for values in measured
    )
    rate, largest = solver.method.rate, float(lipschitz.max())
    validity = Validity(
        method=solver.method.name,
        mixing=solver.mixing.name,
        workers=solver.problem.workers,
        rate=float(jnp.asarray(rate(jnp.zeros((), jnp.int32))) if callable(rate) else rate),
        rate_limit=1 / (4 * largest) if largest else math.inf,
        lipschitz=largest,
        strength=_clean(float(strength.min()), largest),
        contraction=best_contraction(with_local_steps(solver.mixing, solver.local_steps)),
        noise=float(np.sqrt(noise.mean())),
        heterogeneity=float(np.sqrt(heterogeneity.mean())),
        iterations=math.inf,
        impossible=(),
        doubts=(),
    )
    return dataclasses.replace(
        validity,
        iterations=_iterations(validity),
        impossible=tuple(_impossible(validity, solver)),
        doubts=tuple(_doubts(validity, solver)),
    )


def _iterations(of: Validity) -> float:
    if of.strength <= _RELATIVE * of.lipschitz or of.contraction.expected == 0:
        return math.inf
    return math.log(1 / ACCURACY) / (of.rate * of.strength) + (
        of.contraction.window / of.contraction.expected
    )


def _impossible(of: Validity, solver: Solver) -> Iterator[str]:
    if of.contraction.expected == 0 and of.workers > 1:
        yield (
            "p is 0: information of some workers never reaches others; connect the network, or "
            "give the sequence more steps"
        )
    if not (math.isfinite(of.lipschitz) and math.isfinite(of.heterogeneity)):
        yield "the operator is not finite around the start"


def _doubts(of: Validity, solver: Solver) -> Iterator[str]:
    method = solver.method
    adaptive = isinstance(method, (ExtraAdam, TrackedAdam))
    if of.rate > of.rate_limit * 1.05 and not adaptive:
        yield (
            f"rate {of.rate:.4g} exceeds 1/(4L) = {of.rate_limit:.4g}, up to which convergence is "
            f"proved; beyond 1/L = {4 * of.rate_limit:.4g} bilinear problems diverge"
        )
    if isinstance(method, GradientDescentAscent):
        needed = max(of.strength, 0.0) / of.lipschitz**2 if of.lipschitz else math.inf
        if of.rate > needed:
            yield (
                f"gradient descent–ascent needs a rate below mu/L² = {needed:.3g}, got "
                f"{of.rate:.4g}; extra_gradient works for any monotone problem"
            )
    if of.heterogeneity > 1e-6 * of.lipschitz and not isinstance(
        method, (Tracked, TrackedAdam, ProxSkip)
    ):
        yield (
            f"workers' operators differ by {of.heterogeneity:.3g}: it ends at a distance of order "
            "rate from the solution, unlike tracked and prox_skip"
        )


def _check_shape(problem: Problem) -> None:
    value = jax.eval_shape(problem.mean, problem.start)
    if jax.tree.map(jnp.shape, value) != jax.tree.map(jnp.shape, problem.start):
        raise OptionError(
            f"{problem.name}: expected an operator with values of z's shape, "
            f"{jax.tree.map(jnp.shape, problem.start)}, got {jax.tree.map(jnp.shape, value)}"
        )


def _measured(
    problem: Problem, keys: jax.Array, radius: float
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """[points] estimates of L, μ, σ² and D²."""
    start, unravel = ravel_pytree(problem.start)

    def flat(mine: PyTree, z: jax.Array, key: jax.Array) -> jax.Array:
        return ravel_pytree(problem.operator(mine, unravel(z), key))[0]

    def at(number: jax.Array, key: jax.Array) -> tuple[jax.Array, ...]:
        where, power, sample = jax.random.split(key, 3)
        away = radius * jax.random.normal(where, start.shape, start.dtype)
        z = start + jnp.where(number > 0, away, 0)
        lipschitz = jax.vmap(lambda mine: _stretch(lambda v: flat(mine, v, sample), z, power))
        largest = lipschitz(problem.data).max()
        keys = jax.random.split(sample, SAMPLES)
        values = jax.vmap(lambda mine: jax.vmap(lambda key: flat(mine, z, key))(keys))(problem.data)
        noise = _variance(values).mean()
        # Workers use the same samples, so their common noise cancels in the differences; of the
        # rest, the mean over samples keeps only a part.
        apart = values - values.mean(0)
        between = (apart.mean(1) ** 2).sum(-1).mean() - _variance(apart).mean() / SAMPLES

        def mean(v: jax.Array) -> jax.Array:
            return jax.vmap(lambda mine: flat(mine, v, sample))(problem.data).mean(0)

        return largest, _least(mean, z, largest, power), noise, jnp.maximum(between, 0)

    return jax.lax.map(lambda given: at(*given), (jnp.arange(len(keys)), keys))


def _variance(values: jax.Array) -> jax.Array:
    """[N] E‖F(z, ξ) − F(z)‖², estimated from [N, SAMPLES, size] values."""
    return ((values - values.mean(1, keepdims=True)) ** 2).sum((1, 2)) / (SAMPLES - 1)


def _stretch(function: Callable[[jax.Array], jax.Array], z: jax.Array, key: jax.Array) -> jax.Array:
    """‖J‖₂ for the Jacobian J of a function, by power iteration on JᵀJ."""
    forward = jax.linearize(function, z)[1]
    backward = jax.vjp(function, z)[1]

    def step(_: int, v: jax.Array) -> jax.Array:
        (w,) = backward(forward(v / _norm(v)))
        return w

    v = jax.lax.fori_loop(0, POWER_STEPS, step, jax.random.normal(key, z.shape, z.dtype))
    return jnp.sqrt(jnp.linalg.norm(v))


def _least(
    function: Callable[[jax.Array], jax.Array], z: jax.Array, bound: jax.Array, key: jax.Array
) -> jax.Array:
    """The smallest eigenvalue of (J + Jᵀ)/2, by power iteration on bound·I minus that matrix."""
    forward = jax.linearize(function, z)[1]
    backward = jax.vjp(function, z)[1]

    def shifted(v: jax.Array) -> jax.Array:
        return bound * v - (forward(v) + backward(v)[0]) / 2

    def step(_: int, v: jax.Array) -> jax.Array:
        return shifted(v / _norm(v))

    v = jax.lax.fori_loop(0, POWER_STEPS, step, jax.random.normal(key, z.shape, z.dtype))
    v = v / _norm(v)
    return bound - v @ shifted(v)


def _norm(v: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny)


def _clean(strength: float, lipschitz: float) -> float:
    """The strength, or zero if it is too small to be distinguished from zero."""
    return 0.0 if abs(strength) < 1e-6 * lipschitz else strength
