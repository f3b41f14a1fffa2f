"""Contenders trained by the same processes, one after another, and one process alone."""

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
"""What schedules are compared with that computes the same at the same servers."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """Who computes what, and how gradients are averaged."""

    strategy: str
    """Of placement."""
    averages: Averages = "schedule"

    @property
    def name(self) -> str:
        """For progress and tables."""
        return self.strategy if self.averages == "schedule" else f"{self.strategy}, {self.averages}"


def contenders(strategy: str, others: Sequence[str]) -> list[Contender]:
    """What is trained: a strategy with schedules first.

    Args:
        strategy: of placement.
        others: other strategies; or other ways of averaging, at the same servers as the first.
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
    """What all contenders train, and how."""

    topology: Topology
    workload: Workload | Transformer
    settings: Settings
    model: Transformer | None = None
    """What is computed; None: passes sleep for their stages' seconds."""
    placing: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of `place`, such as the numbers of stages and pipelines."""
    progress: Callable[[str], None] = lambda _: None
    """Called with each step under way."""

    def trainings(
        self,
        contenders: Sequence[Contender],
        trainers: contextlib.AbstractContextManager[Trainers],
    ) -> list[Training]:
        """One of each contender.

        Args:
            contenders: in the order in which they train.
            trainers: entered when all placements are found.

        Raises:
            OptionError: for what cannot be trained so.
            RunError: a process was lost, or failed.
        """
        placements = {
            name: self._placed(name) for name in dict.fromkeys(one.strategy for one in contenders)
        }
        for one in contenders:  # refuses all that cannot be trained before processes are there
            placement = placements[one.strategy]
            plan_of(self.topology, placement, self.settings, one.averages, self.model)
        predictions: dict[bytes, StepTime] = {}
        with trainers as processes:
            return [
                self._trained(processes, one, placements[one.strategy], predictions)
                for one in contenders
            ]

    def alone(self) -> list[float]:
        """The losses of one process that computes the whole model."""
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
        """Trains; placements of the same servers have one prediction, and its schedules."""
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
