"""User networks instead of Gradweave's: Equinox or Flax modules, applied to one agent at a time.

A factory is called as ``factory(shape, outputs, key)`` with the shape of an agent's observation,
the length of the output and a random key, and returns a module. The module maps an observation to a
vector of length `outputs`. If its call has a parameter `agent`, it also receives the agent's number
as a one-hot vector. If the module has a method `start()`, which returns its memory at the start of
an episode, it is called as ``module(memory, observation)`` and returns the next memory and the
vector.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gradweave.common import plugins
from gradweave.errors import OptionError
from gradweave.marl.games.environments import written_options
from gradweave.marl.learners.sets import Sets, number

Factory = Callable[..., Any]
"""(shape, outputs, key) -> a module."""


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The modules that a factory makes for one size, without parameters; checked when made."""

    factory: Factory
    shape: tuple[int, ...]
    outputs: int
    agents: int
    """A, the number of agents."""
    recurrent: bool
    """Whether the settings require modules with a memory."""
    remembers: bool = dataclasses.field(init=False)
    """Whether its modules have a memory."""
    _fixed: Any = dataclasses.field(init=False)
    """Everything in a module but its parameters."""
    _numbered: bool = dataclasses.field(init=False)
    """Whether the modules receive the agent's number."""

    def __post_init__(self) -> None:
        module = self._module(jax.random.key(0))
        parameters, fixed = self._parted(module)
        if not jax.tree.leaves(parameters):
            raise OptionError(f"{self.label}: has no parameters, which are arrays of floats")
        object.__setattr__(self, "_fixed", fixed)
        object.__setattr__(self, "remembers", hasattr(module, "start"))
        if self.remembers != self.recurrent:
            which = "has a memory, start()" if self.remembers else "has no memory, start()"
            raise OptionError(
                f"{self.label}: {which}: expected recurrent={str(self.remembers).lower()}"
            )
        call = type(module).__call__
        object.__setattr__(self, "_numbered", "agent" in inspect.signature(call).parameters)
        self._check(parameters)

    @property
    def label(self) -> str:
        """Name of the factory for messages."""
        return f"network {plugins.name_of(self.factory)}"

    def draw(self, key: PRNGKeyArray) -> Any:
        """Draws the parameters, a tree of arrays."""
        # One after the other if there are several sets: see `networks._orthogonal`.
        return sequential_vmap(lambda key: self._parted(self._module(key))[0])(key)

    def begun(self, parameters: Any) -> Any:
        """One agent's memory at the start of an episode, or None without a memory."""
        if not self.remembers:
            return None
        return jax.tree.map(jnp.asarray, self._whole(parameters).start())

    def __call__(self, parameters: Any, memory: Any, seen: Array, agent: Array) -> tuple[Any, Any]:
        """One step of one agent.

        Args:
            parameters: the result of `draw`.
            memory: memory from the preceding step.
            seen: [I] observation, of the shape passed to the factory.
            agent: [A] one-hot number of the agent.

        Returns:
            The next memory, and a vector.
        """
        module = self._whole(parameters)
        also = {"agent": agent} if self._numbered else {}
        seen = seen[: int(np.prod(self.shape))].reshape(self.shape)
        if not self.remembers:
            return None, module(seen, **also)
        return module(memory, seen, **also)

    def _module(self, key: PRNGKeyArray) -> Any:
        what = f"called with shape {self.shape}, {self.outputs} outputs and a key"
        made = plugins.called(self.label, what, lambda: self.factory(self.shape, self.outputs, key))
        linen, nnx = _flax("flax.linen"), _flax("flax.nnx")
        if linen and isinstance(made, linen.Module):
            return _Linen(made, key, self.shape, self.agents, self.label)
        if isinstance(made, eqx.Module) or (nnx and isinstance(made, nnx.Module)):
            if callable(made):
                return made
            raise OptionError(f"{self.label}: {type(made).__name__} has no __call__(observation)")
        raise OptionError(
            f"{self.label}: expected a factory of modules of Equinox or Flax, which is {what}; got "
            f"{made!r:.60}"
        )

    def _parted(self, module: Any) -> tuple[Any, Any]:
        """Splits a module into its parameters and the rest."""
        nnx = _flax("flax.nnx")
        if nnx and isinstance(module, nnx.Module):
            graph, parameters, rest = nnx.split(module, nnx.Param, ...)
            return nnx.to_pure_dict(parameters), (graph, parameters, rest)
        return eqx.partition(module, eqx.is_inexact_array)

    def _whole(self, parameters: Any) -> Any:
        """The module with the given parameters."""
        nnx = _flax("flax.nnx")
        if nnx and isinstance(self._fixed, tuple) and isinstance(self._fixed[0], nnx.GraphDef):
            graph, like, rest = self._fixed
            state = jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(parameters))
            return nnx.merge(graph, state, rest)
        return eqx.combine(parameters, self._fixed)

    def _check(self, parameters: Any) -> None:
        """Refuses modules that return anything but a vector of length `outputs`."""
        where = f"called with an observation of shape {self.shape}"
        seen = jnp.zeros(int(np.prod(self.shape)))
        memory = plugins.called(self.label, "start()", lambda: self.begun(parameters))
        answered = plugins.called(
            self.label,
            where,
            lambda: jax.eval_shape(self, parameters, memory, seen, jnp.zeros(self.agents)),
        )
        after, out = answered
        if getattr(out, "shape", None) != (self.outputs,):
            got = getattr(out, "shape", type(out).__name__)
            raise OptionError(f"{self.label}: {where}: expected shape ({self.outputs},), got {got}")
        if jax.tree.map(jnp.shape, after) != jax.tree.map(jnp.shape, memory):
            raise OptionError(f"{self.label}: {where}: the memory has another shape than start()")


class OwnNetwork(eqx.Module):
    """User modules for all agents, used like `networks.Network`."""

    parameters: Any
    """Parameters of one module; [N, …] if there are several sets of parameters."""
    plan: Plan = eqx.field(static=True)
    sets: Sets = eqx.field(static=True)

    def start(self, *batch: int) -> Any:
        """The memory at the start of an episode: [*batch, A, …], or None."""
        if not self.plan.remembers:
            return None
        begun = self._begun()
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (*batch, *x.shape)), begun)

    def __call__(
        self, memory: Any, x: Float[Array, "*B A I"], start: Bool[Array, "*B"]
    ) -> tuple[Any, Float[Array, "*B A N"]]:
        """See `Network.__call__`."""
        if self.plan.remembers:
            memory = jax.tree.map(
                lambda begun, now: jnp.where(
                    start.reshape(*start.shape, *(1,) * begun.ndim), begun, now
                ),
                self._begun(),
                memory,
            )
        step = jax.vmap(self.plan, (0 if self._several else None, 0, 0, 0))
        for _ in start.shape:
            step = jax.vmap(step, (None, 0, 0, None))
        return step(self._by_agent(), memory, x, jnp.eye(self.plan.agents))

    def along(
        self, memory: Any, x: Float[Array, "T *B A I"], start: Bool[Array, "T *B"]
    ) -> Float[Array, "T *B A N"]:
        """See `Network.along`."""
        if not self.plan.remembers:
            return self(None, x, start)[1]
        return jax.lax.scan(lambda memory, now: self(memory, *now), memory, (x, start))[1]

    @property
    def _several(self) -> bool:
        return number(self.sets) > 1

    def _by_agent(self) -> Any:
        if not self._several:
            return self.parameters
        return jax.tree.map(lambda leaf: leaf[np.array(self.sets)], self.parameters)

    def _begun(self) -> Any:
        """[A, …] memories of the agents at the start of an episode."""
        if self._several:
            return jax.vmap(self.plan.begun)(self._by_agent())
        one = self.plan.begun(self.parameters)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.plan.agents, *x.shape)), one)


def draw_own(plan: Plan, sets: Sets, key: PRNGKeyArray) -> OwnNetwork:
    """Draws one module per set of parameters."""
    if number(sets) == 1:
        return OwnNetwork(plan.draw(key), plan, sets)
    keys = jax.random.split(key, number(sets))
    return OwnNetwork(jax.vmap(plan.draw)(keys), plan, sets)


def named(spec: str) -> Factory:
    """The factory ``module:factory``, with options as in ``my.networks:cnn:width=32``.

    The function imports the module, so never pass it text from a file.

    Raises:
        OptionError: it cannot be imported, or is not a factory.
    """
    module, _, rest = spec.partition(":")
    name, _, written = rest.partition(":")
    factory = plugins.imported(f"{module}:{name}", "network")
    if not callable(factory):
        raise OptionError(f"network {spec}: expected a function of shape, outputs and key")
    options = written_options(spec, written)
    return functools.partial(factory, **options) if options else factory


class _Linen(eqx.Module):
    """A module of flax.linen, with its parameters."""

    parameters: Any
    module: Any = eqx.field(static=True)

    def __init__(
        self, module: Any, key: PRNGKeyArray, shape: tuple[int, ...], agents: int, label: str
    ) -> None:
        self.module = module
        also = {"agent": jnp.zeros(agents)} if _numbered(module) else {}
        made = plugins.called(
            label, "init(key, observation)", lambda: module.init(key, jnp.zeros(shape), **also)
        )
        if others := sorted(set(made) - {"params"}):
            raise OptionError(f"{label}: keeps more than parameters: {', '.join(others)}")
        self.parameters = made.get("params", {})

    def __call__(self, seen: Array, agent: Array | None = None) -> Array:
        also = {"agent": agent} if _numbered(self.module) else {}
        return self.module.apply({"params": self.parameters}, seen, **also)


def _numbered(module: Any) -> bool:
    return "agent" in inspect.signature(type(module).__call__).parameters


def _flax(name: str) -> Any:
    """A module of Flax if Flax has been imported; otherwise no object can be of its classes."""
    return sys.modules.get(name)
