"""Methods that converge to the solution even if the workers' operators differ.

In the published method each worker follows its operator between communications, so the method ends
at a distance of order γ from the solution. Here each worker adds a correction, which converges to
the difference between the mean operator and its own, so that all workers rest at the solution.
"""

import abc
import dataclasses
from typing import ClassVar

import jax

from gradweave.errors import OptionError
from gradweave.execute.jax_mesh.buffers import PyTree
from gradweave.saddle.method import AdamSteps, Method, Proposal, Sampled, moved, zeros


@dataclasses.dataclass(frozen=True)
class _Tracking(Method):
    """The common part of the methods with gradient tracking."""

    calls: ClassVar[int] = 2
    vectors: ClassVar[int] = 2

    def start(self, z: PyTree) -> PyTree:
        """ŷ, F at the previous z, and the memory of the steps."""
        return {"tracker": zeros(z), "last": zeros(z), "steps": self._remembered(z)}

    def extra(self, z: PyTree) -> tuple[PyTree, ...]:
        """The initial ŷ."""
        return (zeros(z),)

    def propose(self, z: PyTree, memory: PyTree, operator: Sampled, rate: jax.Array) -> Proposal:
        """z^{2/3} and y."""
        now = operator(z, 0)
        correction = jax.tree.map(lambda a, b: a - b, memory["tracker"], memory["last"])
        y = moved(now, 1.0, correction)
        first, steps = self._step(y, memory["steps"])
        half = moved(z, -rate, first)
        second, steps = self._step(moved(operator(half, 0), 1.0, correction), steps)
        memory = {"tracker": y, "last": now, "steps": steps}
        return Proposal((moved(z, -rate, second), y), memory, half)

    def idle(self, z: PyTree, memory: PyTree) -> Proposal:
        """Z and ŷ."""
        return Proposal((z, memory["tracker"]), memory, z)

    def receive(
        self,
        sent: tuple[PyTree, ...],
        mixed: tuple[PyTree, ...],
        memory: PyTree,
        rate: jax.Array,
        local_steps: int,
    ) -> tuple[PyTree, PyTree]:
        """The averages."""
        return mixed[0], memory | {"tracker": mixed[1]}

    def _remembered(self, z: PyTree) -> PyTree:
        return ()

    @abc.abstractmethod
    def _step(self, value: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
        """The direction of a step, given an estimate of the mean operator's value."""


@dataclasses.dataclass(frozen=True)
class Tracked(_Tracking):
    """Extra-gradient with gradient tracking: neighbours also average an estimate y of the mean.

    y ← ŷ + F(z) − F(previous z), whose mean over all workers equals the mean of F(z). The half step
    is z^{1/3} = z − γy, and z^{2/3} = z − γ(F(z^{1/3}) + y − F(z)); then z ← Wz^{2/3} and ŷ ← Wy.
    Both calls of F use the same sample. The method sends twice the bytes of the published method; W
    may change.

    Source: the correction of Pu and Nedić 2021 (DSGT) in both steps of Beznosikov et al. 2022.
    """

    name: ClassVar[str] = "tracked"

    def _step(self, value: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
        return value, memory


@dataclasses.dataclass(frozen=True)
class TrackedAdam(AdamSteps, _Tracking):
    """`Tracked` with Adam's steps, applied to the estimate of the mean operator.

    Adam's steps have about the same size for any input. So if workers differ, all pull equally
    strongly regardless of their distance from their optimum, and `ExtraAdam` ends elsewhere than at
    the solution. Here the inputs of all workers' Adams are nearly equal.

    Source: `Tracked`, with the steps of Gidel et al. 2019, algorithm 4.
    """

    name: ClassVar[str] = "tracked_adam"

    def _remembered(self, z: PyTree) -> PyTree:
        return self._adam().init(z)

    def _step(self, value: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
        return self._adam().update(value, memory)


@dataclasses.dataclass(frozen=True)
class ProxSkip(Method):
    """Extra-gradient with control variates: corrections are learned from the effect of averaging.

    Both steps follow F(z) − h. Then z⁺ = (1 − α)z^{2/3} + αWz^{2/3} and h ← h + (z⁺ −
    z^{2/3})/(γH), where H is the number of local steps per communication. It sends as many
    bytes as the published method. Convergence is proved for a server that averages all workers, and
    for a constant W; in tests it also works if W changes, with smaller rates.

    Source: Beznosikov et al. 2023 (ProxSkip-VIP), algorithm 2, with an average over neighbours
    instead of the mean; for one operator call and H = 1 that is NIDS (Li, Shi and Yan 2019).
    """

    name: ClassVar[str] = "prox_skip"
    calls: ClassVar[int] = 2

    share: float = 0.5
    """α, above 0 and at most 1; above 1/2 it diverges for some matrices W."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise OptionError(f"share: expected above 0 and at most 1, got {self.share}")

    def start(self, z: PyTree) -> PyTree:
        """The correction, h."""
        return zeros(z)

    def propose(self, z: PyTree, memory: PyTree, operator: Sampled, rate: jax.Array) -> Proposal:
        """z^{2/3}."""
        half = moved(moved(z, -rate, operator(z, 0)), rate, memory)
        return Proposal((moved(moved(z, -rate, operator(half, 1)), rate, memory),), memory, half)

    def receive(
        self,
        sent: tuple[PyTree, ...],
        mixed: tuple[PyTree, ...],
        memory: PyTree,
        rate: jax.Array,
        local_steps: int,
    ) -> tuple[PyTree, PyTree]:
        """z⁺ and h."""
        change = jax.tree.map(lambda w, z: self.share * (w - z), mixed[0], sent[0])
        return moved(sent[0], 1.0, change), moved(memory, 1 / (rate * local_steps), change)
