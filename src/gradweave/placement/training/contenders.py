"""Contenders trained by the same processes one after another, and a single-process reference."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradweave.placement.placement import Placement
from gradweave.placement.placing import place
from gradweave.placement.timeline.step import StepTime
from gradweave.placement.training.plan import Averages
from gradweave.placement.training.running import Settings, Trainers, Training, plan_of
from gradweave.placement.workload import Transformer, Workload
from gradweave.topology.topology import Topology

_BY_OTHERS: Mapping[str, Averages] = {"gloo": "gloo", "pytorch": "pytorch"}
"""Baselines that compute the same at the same servers but average gradients differently."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """A placement strategy, and how gradients are averaged."""

    strategy: str
    """The placement strategy."""
    averages: Averages = "schedule"

    @property
    def name(self) -> str:
        """Name for progress lines and tables."""
        return self.strategy if self.averages == "schedule" else f"{self.strategy}, {self.averages}"


def contenders(strategy: str, others: Sequence[str]) -> list[Contender]:
    """The contenders to train, a strategy with our schedules first.

    Args:
        strategy: a placement strategy.
        others: other strategies, or other ways of averaging with the first strategy's placement.
    """
    return [
        Contender(strategy),
        *(
            Contender(strategy, _BY_OTHERS[one]) if one in _BY_OTHERS else Contender(one)
            for one in others
        ),
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class Contest:
    """The training that all contenders run, and its options."""

    topology: Topology
    workload: Workload | Transformer
    settings: Settings
    model: Transformer | None = None
    """The model to train; None: passes sleep for their stages' seconds."""
    placing: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of `place`, such as the numbers of stages and pipelines."""
    progress: Callable[[str], None] = lambda _: None
    """Called with each step under way."""

    def trainings(
        self,
        contenders: Sequence[Contender],
        trainers: contextlib.AbstractContextManager[Trainers],
    ) -> list[Training]:
        """Trains each contender once.

        Args:
            contenders: in the order in which they train.
            trainers: entered once all placements are found.

        Raises:
            OptionError: for a setting that cannot be trained.
            RunError: a process was lost or failed.
        """
        placements = {
            name: self._placed(name) for name in dict.fromkeys(one.strategy for one in contenders)
        }
        for one in contenders:  # reject what cannot be trained before processes start
            placement = placements[one.strategy]
            plan_of(self.topology, placement, self.settings, one.averages, self.model)
        predictions: dict[bytes, StepTime] = {}
        with trainers as processes:
            return [
                self._trained(processes, one, placements[one.strategy], predictions)
                for one in contenders
            ]

    def alone(self) -> list[float]:
        """The losses of a single process that computes the whole model."""
        from gradweave.placement.training.trainer import whole_losses

        assert self.model is not None
        self.progress("training in one process")
        settings = self.settings
        return whole_losses(self.model, settings.steps, seed=settings.seed, rate=settings.rate)

    def _placed(self, strategy: str) -> Placement:
        settings = self.settings
        return place(
            self.topology, self.workload, strategy=strategy, bound=False, seed=settings.seed,
            time_limit=settings.time_limit, progress=self.progress, **self.placing,
        )  # fmt: skip

    def _trained(
        self,
        processes: Trainers,
        contender: Contender,
        placement: Placement,
        predictions: dict[bytes, StepTime],
    ) -> Training:
        """Trains; placements with the same servers share a prediction and its schedules."""
        predicted, same = None, placement.servers.tobytes()
        if contender.averages == "schedule":
            if same not in predictions:
                found = None if placement.scheduled is None else placement.scheduled.groups
                predictions[same] = processes.predict(
                    placement, self.settings, groups=found, progress=self.progress
                )
            predicted = predictions[same]
        return processes.train(
            contender.name, placement, self.settings, averages=contender.averages,
            model=self.model, predicted=predicted, progress=self.progress,
        )  # fmt: skip
