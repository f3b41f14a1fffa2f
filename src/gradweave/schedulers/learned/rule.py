"""Who decides in an episode: the rule with tuned constants, or whatever else scores workloads."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.learned.features import Round

if TYPE_CHECKING:
    from gradweave.schedulers.learned.episode import OngoingEpisode


class Scores(NamedTuple):
    """The weights of a round's features."""

    hop: Any
    """[H, 12] weights of each hop's features."""
    piece: Any
    """[N, 7] weights of a tree's features, by the receiver."""
    match: Any
    """[N, Q] added to a tree's score at a receiver."""


class Decides(Protocol):
    """What decides in an episode: `RuleWeights`, or trained policies (`learning.policies`)."""

    def select(
        self,
        episode: "OngoingEpisode",
        features: Round,
        rng: np.random.Generator,
        temperature: float,
    ) -> NDArray[np.bool_]:
        """[Q] flow-tree selection: the trees of the round."""
        ...

    def scores(self, episode: "OngoingEpisode", features: Round) -> Scores:
        """Workload scheduling: the weights of the features of the round's workloads."""
        ...


class RuleWeights(NamedTuple):
    """A rule instead of both policies: one weight for each feature, and all trees are selected.

    There is no message passing; the weights are the same on all hops and at all servers.
    """

    hop: NDArray[np.float32]
    """[12]"""
    piece: NDArray[np.float32]
    """[7]"""

    def select(
        self,
        episode: "OngoingEpisode",
        features: Round,
        rng: np.random.Generator,
        temperature: float,
    ) -> NDArray[np.bool_]:
        """[Q] all trees that can be selected."""
        return features.candidates

    def scores(self, episode: "OngoingEpisode", features: Round) -> Scores:
        """The weights of the features: the same everywhere."""
        servers, trees = episode.waiting.shape
        return Scores(
            hop=np.tile(self.hop, (len(episode.there), 1)),
            piece=np.tile(self.piece, (servers, 1)),
            match=np.zeros((servers, trees), np.float32),
        )
