"""Optimizers that are compared on tabulated scores: metaprior, BoTorch's models, random search, past optima."""

# pyright: reportMissingImports=false

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.means import Mean
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import qmc
from torch import Tensor

from metaprior import MetaGPRegressor
from metaprior.botorch import MetaPriorModel
from metaprior_studies.tuning.scores import Scores

N_PAST = 30  # evaluations of a past run, a random search
STARTS = (
    5,
    2,
)  # Sobol points before the first model: best on validation tasks, with two hyper-parameters and with four


class Past(NamedTuple):
    """Past runs: pairs of settings (evaluations, hyper-parameters) and their scores."""

    source: list[tuple[np.ndarray, np.ndarray]]
    target: list[tuple[np.ndarray, np.ndarray]]


class Seen(NamedTuple):
    """The evaluations of a run so far: which of the settings, and their scores."""

    places: list[int]
    scores: list[float]


Propose = Callable[[Seen, np.random.Generator], int]  # the setting to evaluate next
Contestant = Callable[[Past, np.ndarray, int], Propose]  # given past runs, the settings and a seed
Start = Callable[[Past, np.random.Generator], Sequence[np.ndarray]]  # points that are evaluated first


def draw_past(scores: Scores, seed: int) -> Past:
    """Draw the evaluations of past runs."""
    rng = np.random.default_rng(seed)

    def runs(group: str) -> list[tuple[np.ndarray, np.ndarray]]:
        drawn = [(row, rng.permutation(len(row))[:N_PAST]) for row in scores.groups[group]]
        return [(scores.settings[places], row[places]) for row, places in drawn]

    return Past(runs("source"), runs("target"))


def optimize(propose: Propose, scores: np.ndarray, n_evaluations: int, rng: np.random.Generator) -> np.ndarray:
    """Return the simple regret after each evaluation: how much the best score so far is below the best of all."""
    seen = Seen([], [])
    for _ in range(n_evaluations):
        place = propose(seen, rng)
        seen.places.append(place)
        seen.scores.append(float(scores[place]))
    return scores.max() - np.maximum.accumulate(seen.scores)


def random_search(past: Past, settings: np.ndarray, seed: int) -> Propose:
    """Evaluate settings at random."""
    return lambda seen, rng: int(rng.choice(_left(seen, len(settings))))


def past_optima(past: Past, settings: np.ndarray, seed: int) -> Propose:
    """Evaluate the best settings of past runs, of the family first; nothing is learned on the way."""
    best = _nearest(settings, [x[y.argmax()] for x, y in (*past.target, *past.source)])

    def propose(seen: Seen, rng: np.random.Generator) -> int:
        left = [place for place in best if place not in seen.places]
        return left[0] if left else int(rng.choice(_left(seen, len(settings))))

    return propose


def with_metaprior(start: Start) -> Contestant:
    """Return a meta-learned prior with expected improvement, after evaluations at settings that `start` gives."""

    def contestant(past: Past, settings: np.ndarray, seed: int) -> Propose:
        meta = MetaGPRegressor(random_state=seed, progress=False).fit(past.source, past.target)
        return _started(start, past, settings, lambda seen: MetaPriorModel(meta, *_tensors(settings, seen)))

    return contestant


def single_task(start: Start) -> Contestant:
    """Return BoTorch's default model with expected improvement, after evaluations at settings that `start` gives."""

    def contestant(past: Past, settings: np.ndarray, seed: int) -> Propose:
        return _started(start, past, settings, lambda seen: _fitted(SingleTaskGP(*_tensors(settings, seen))))

    return contestant


def sobol_points(n: int) -> Start:
    """Return the usual start, from nothing."""
    return lambda past, rng: list(qmc.Sobol(past.target[0][0].shape[1], rng=rng).random(8)[:n])


def best_of_family(n: int) -> Start:
    """Return the best settings of the first `n` past runs of the family."""
    return lambda past, rng: [x[y.argmax()] for x, y in past.target[:n]]


def with_past_mean(past: Past, settings: np.ndarray, seed: int) -> Propose:
    """Evaluate with a model whose mean is that of a model of all past evaluations (as BayBE's `from_prior`)."""
    x, y = (np.concatenate(parts) for parts in zip(*past.source, *past.target, strict=True))
    center, scale = y.mean(), y.std()
    of_past = _fitted(
        SingleTaskGP(torch.tensor(x), torch.tensor((y - center) / scale)[:, None], outcome_transform=None)
    )

    def propose(seen: Seen, rng: np.random.Generator) -> int:
        if not seen.places:
            return _best(of_past, settings, seen)
        x, y = _tensors(settings, seen)
        y, mean = (y - center) / scale, PosteriorMean(of_past)
        return _best(_fitted(SingleTaskGP(x, y, mean_module=mean, outcome_transform=None)), settings, seen, y.max())

    return propose


class PosteriorMean(Mean):
    """The posterior mean of a model, as the mean of another."""

    def __init__(self, model: SingleTaskGP):
        super().__init__()
        self._model = [model]  # in a list, so that its parameters are not fitted again

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean at inputs (..., n, d)."""
        return self._model[0].posterior(x).mean.squeeze(-1).detach()


CONTESTANTS: dict[str, Contestant] = {
    "metaprior": with_metaprior(best_of_family(1)),
    "metaprior, from its mean": with_metaprior(best_of_family(0)),
    **{f"SingleTaskGP, {n} Sobol": single_task(sobol_points(n)) for n in STARTS},
    "SingleTaskGP, past best": single_task(best_of_family(3)),
    "SingleTaskGP, past mean": with_past_mean,
    "past optima": past_optima,
    "random search": random_search,
}


def _started(start: Start, past: Past, settings: np.ndarray, model: Callable[[Seen], Any]) -> Propose:
    """Return an optimizer that evaluates some settings first, then where a model expects most improvement."""
    first: list[int] = []

    def propose(seen: Seen, rng: np.random.Generator) -> int:
        if not seen.places:
            first[:] = _nearest(settings, start(past, rng))
        return first[len(seen.places)] if len(seen.places) < len(first) else _best(model(seen), settings, seen)

    return propose


def _fitted(model: SingleTaskGP) -> SingleTaskGP:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def _best(model: Any, settings: np.ndarray, seen: Seen, best_score: Any = None) -> int:
    """Return the setting with the largest expected improvement; without evaluations, with the largest mean."""
    left = _left(seen, len(settings))
    queries = torch.tensor(settings[left]).unsqueeze(-2)
    with torch.no_grad():
        if not seen.places:
            return int(left[model.posterior(queries).mean.argmax()])
        improvement = LogExpectedImprovement(model, max(seen.scores) if best_score is None else best_score)
        return int(left[improvement(queries).argmax()])


def _left(seen: Seen, n: int) -> np.ndarray:
    """Return the settings that were not evaluated yet."""
    return np.setdiff1d(np.arange(n), seen.places)


def _nearest(settings: np.ndarray, points: Sequence[np.ndarray]) -> list[int]:
    """Return the tabulated setting nearest to each point, without repetitions."""
    return list(dict.fromkeys(int(np.sum((settings - point) ** 2, axis=1).argmin()) for point in points))


def _tensors(settings: np.ndarray, seen: Seen) -> tuple[Tensor, Tensor]:
    return torch.tensor(settings[seen.places]), torch.tensor(seen.scores, dtype=torch.float64)[:, None]
