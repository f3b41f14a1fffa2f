"""The rule with tuned constants, which decides in an episode."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.learning.episodes.features import Round, Scores

if TYPE_CHECKING:
    from gradweave.learning.episodes.episode import OngoingEpisode


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
