"""What a search compares, and what it has chosen: the same for every way to fit a prior."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from metaprior.search.weights import Weights


@dataclass(frozen=True)
class Candidate:
    """Environment weights and settings. Candidates that are trained together differ in numbers only."""

    weights: Weights
    settings: Any  # of the prior that is fitted
    from_scores: bool = False  # made from the scores of other candidates, on the same target tasks


class Choice(NamedTuple):
    """The candidates that were compared, their weights in the average (zero: dropped), and their scores."""

    candidates: list[Candidate]
    weights: np.ndarray  # (candidates,)
    # (candidates, target tasks): mean contaminated log density per query of each held-out task. None if nothing was
    # held out.
    scores: np.ndarray | None
    densities: np.ndarray | None = None  # the same, of plain log densities
    free_energy: np.ndarray | None = None  # (candidates,): nats per reading, where it is known

    @property
    def members(self) -> list[tuple[Candidate, float]]:
        """Return the candidates that predictions are averaged over, with their weights."""
        pairs = zip(self.candidates, self.weights.tolist(), strict=True)
        return [(candidate, weight) for candidate, weight in pairs if weight > 0]
