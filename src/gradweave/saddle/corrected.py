"""Methods that end at the solution however much the workers' operators differ.

The published method follows each worker's own operator between communications, and ends at a
distance of order γ from the solution. Here each worker adds a correction to its operator that comes
to be the difference between the mean of all and its own, so that all stand still at the solution.
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
    """What the methods with gradient tracking have in common."""

    calls: ClassVar[int] = 2
    vectors: ClassVar[int] = 2

    def start(self, z: PyTree) -> PyTree:
        """ŷ, F at the previous z, and what the steps remember."""
        return {"tracker": zeros(z), "last": zeros(z), "steps": self._remembered(z)}

    def extra(self, z: PyTree) -> tuple[PyTree, ...]:
        """ŷ."""
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
        """Along what to step by the rate, given an estimate of the mean operator's value."""


@dataclasses.dataclass(frozen=True)
class Tracked(_Tracking):
    """Extra-gradient with gradient tracking: neighbours also average an estimate y of the mean.

    y ← ŷ + F(z) − F(previous z), of which the mean over all workers is that of F; the half step is
    z^{1/3} = z − γy, and z^{2/3} = z − γ(F(z^{1/3}) + y − F(z)); then z ← Wz^{2/3} and ŷ ← Wy. Both
    calls of F have one sample. Twice the bytes of the published method; W may change.

    Source: the correction of Pu and Nedić 2021 (DSGT) in both steps of Beznosikov et al. 2022.
    """

    name: ClassVar[str] = "tracked"

    def _step(self, value: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
        return value, memory


@dataclasses.dataclass(frozen=True)
class TrackedAdam(AdamSteps, _Tracking):
    """The same with Adam's steps: of the estimate of the mean operator, not of a worker's own.

    Adam makes steps of one size of whatever it is given, so that workers that differ pull alike
    however far they have to go, and `ExtraAdam` ends elsewhere. Here all workers' Adams see nearly
    the same.

    Source: `Tracked`, with the steps of Gidel et al. 2019, algorithm 4.
    """

    name: ClassVar[str] = "tracked_adam"

    def _remembered(self, z: PyTree) -> PyTree:
        return self._adam().init(z)

    def _step(self, value: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
        return self._adam().update(value, memory)


@dataclasses.dataclass(frozen=True)
class ProxSkip(Method):
    """Extra-gradient with control variates: corrections are learned from what an average changes.

    Both steps follow F(z) − h. Then z⁺ = (1 − α)z^{2/3} + αWz^{2/3} and
    h ← h + (z⁺ − z^{2/3})/(γH), where H is the number of local steps to a communication. The bytes
    of the published method. Proved for a server that averages all and for W that is the same in all
    steps; in tests it bears changing ones too, with smaller rates.

    Source: Beznosikov et al. 2023 (ProxSkip-VIP), algorithm 2, with an average over neighbours in
    place of the mean; for one operator call and H = 1 that is NIDS (Li, Shi and Yan 2019).
    """

    name: ClassVar[str] = "prox_skip"
    calls: ClassVar[int] = 2

    share: float = 0.5
    """α, above 0 and at most 1; at more than 1/2 some matrices W make it diverge."""

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
