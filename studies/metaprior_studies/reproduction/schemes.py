"""What is compared: schemes, each a choice of tasks and weights of one objective, and their scores on every draw."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from metaprior.metrics.classification import summarize_labels
from metaprior.metrics.regression import calibration_error, negative_log_likelihood, root_mean_square_error
from metaprior.prediction.ensemble import average_log
from metaprior.prediction.mixtures import GaussianMixture
from metaprior.search.averaging import choose_weights, contaminated
from metaprior.search.held_out import MOST_PARTICLES, hold_out, reference_log_densities, search_method
from metaprior.search.selection import STEPS_DIVISOR
from metaprior.search.weights import DISCOUNTS, discounted
from metaprior.tasks.types import TestTask
from metaprior_studies.reproduction.engine import Draw, Prediction, Spec, Training, predictions, stack_tests
from metaprior_studies.schema import ALL, AUTO, FEW, GP, LABEL_METRICS, POOLED, REGRESSION_METRICS, WFEM

OnChunk = Callable[[str], None]  # told what is being done, often


class Scheme(NamedTuple):
    """A way to learn from the first so many source and target tasks of a draw."""

    name: str
    n_source: int
    n_target: int
    alpha: float | None  # weight of the source; None: chosen by held-out target tasks
    trained: bool = True
    prior_std: float = 1.0  # times that of the settings


def paper_schemes(n_tasks: int, n_source: int, alpha: float | None) -> list[Scheme]:
    """The schemes of the paper's figures at beta = n_source / N; alpha None leaves WFEM out.

    GP sees no task at all, not even to scale its inputs by; so does PACOH where there are no target tasks.
    """
    n_target = n_tasks - n_source
    schemes = [
        Scheme(GP, 0, 0, 0.0, trained=False),
        Scheme(FEW, 0, n_target, 0.0),
        Scheme(POOLED, n_source, n_target, n_source / n_tasks),
        Scheme(ALL, 0, n_tasks, 0.0),
    ]
    return schemes if alpha is None else [*schemes, Scheme(WFEM, n_source, n_target, alpha)]


def auto_scheme(n_tasks: int, n_source: int) -> list[Scheme]:
    """WFEM with alpha chosen, where there are target tasks to choose it by and source tasks to weigh."""
    n_target = n_tasks - n_source
    return [Scheme(AUTO, n_source, n_target, None)] if n_target >= 2 and n_source else []


def score(
    draws: Sequence[Draw],
    schemes: Sequence[Scheme],
    training: Training,
    n_slots: int,
    on_chunk: OnChunk = lambda what: None,
) -> list[dict[Scheme, dict[str, float]]]:
    """The metrics of every scheme on every draw. Everything that is trained, is trained in one program."""
    members: list[tuple[int, Scheme, float, Spec]] = []  # draw, scheme, weight in its average, run
    for scheme in schemes:
        if scheme.alpha is None:
            weights, alphas = choose_alpha(draws, scheme, training, n_slots, on_chunk)
        else:
            weights, alphas = np.ones((len(draws), 1)), [scheme.alpha]
        for i, draw in enumerate(draws):
            for weight, alpha in zip(weights[i].tolist(), alphas, strict=True):
                members.append((i, scheme, weight, _spec(draw, scheme, alpha, draw.test)))
    specs = [spec for *_, spec in members]
    predicted = predictions(specs, training, n_slots, lambda step: on_chunk("training every scheme"))
    gathered: list[dict[Scheme, list[tuple[float, Prediction]]]] = [{} for _ in draws]
    for (i, scheme, weight, _), prediction in zip(members, predicted, strict=True):
        if weight > 0:
            gathered[i].setdefault(scheme, []).append((weight, prediction))
    return [
        {scheme: metrics(of_draw.get(scheme, []), draw.test.y_query) for scheme in schemes}
        for draw, of_draw in zip(draws, gathered, strict=True)
    ]


def choose_alpha(
    draws: Sequence[Draw], scheme: Scheme, training: Training, n_slots: int, on_chunk: OnChunk = lambda what: None
) -> tuple[np.ndarray, list[float]]:
    """Weights (draws, candidates) of the candidates for alpha, and these: what `alpha="auto"` does, for all draws.

    All zero where every candidate diverged. Runs of the search take a quarter of the steps and up to three particles
    that do not interact, as in `fit`.
    """
    counts = (scheme.n_source, scheme.n_target)
    alphas = [1.0 - discounted(counts, 1, r)[1] for r in DISCOUNTS]
    settings = training.settings
    labels = settings.likelihood == "bernoulli"
    n_particles = min(settings.n_particles, MOST_PARTICLES)
    shorter = replace(
        training,
        settings=replace(settings, method=search_method(settings.method), n_particles=n_particles),
        n_steps=-(-training.n_steps // STEPS_DIVISOR),
    )
    folds = [hold_out(draw.target[: scheme.n_target], draw.seed, labels) for draw in draws]
    runs: list[tuple[int, int, np.ndarray, Spec]] = []  # draw, candidate, tasks held out, run
    for i, (draw, of_draw) in enumerate(zip(draws, folds, strict=True)):
        for c, alpha in enumerate(alphas):
            for members in of_draw.members:
                test = stack_tests([split for task in members.tolist() for split in of_draw.splits[task]])
                kept = np.setdiff1d(np.arange(scheme.n_target), members).tolist()
                spec = Spec(draw, range(scheme.n_source), kept, alpha, test, scheme.prior_std)
                runs.append((i, c, members, spec))
    predicted = predictions([spec for *_, spec in runs], shorter, n_slots, lambda step: on_chunk("choosing alpha"))
    references = [
        reference_log_densities(draw.target[: scheme.n_target], of_draw, labels)
        for draw, of_draw in zip(draws, folds, strict=True)
    ]
    scores = np.full((len(draws), len(alphas), *references[0].shape), np.nan)
    for (i, c, members, spec), prediction in zip(runs, predicted, strict=True):
        scores[i, c, members] = _log_density(prediction, spec.test.y_query).reshape(len(members), -1)
    scores = np.where(np.isnan(scores), -np.inf, scores)  # of what diverged
    weights = []
    for of_draw, reference in zip(scores, references, strict=True):
        robust = np.where(np.isneginf(of_draw), -np.inf, contaminated(of_draw, reference)).mean(axis=2)
        diverged = not np.isfinite(robust).all(axis=1).any()
        weights.append(np.zeros(len(alphas)) if diverged else choose_weights(robust, 0))
    return np.stack(weights), alphas


def metrics(parts: Sequence[tuple[float, Prediction]], y: np.ndarray) -> dict[str, float]:
    """Metrics of the average of some predictions, from (weight, prediction) and the true y (tasks, queries).

    NaN where a run diverged, or every candidate of a search did, so that there is none.
    """
    if not parts:
        return dict.fromkeys((*REGRESSION_METRICS, *LABEL_METRICS), np.nan)
    weights = np.array([weight for weight, _ in parts])
    if parts[0][1].log_probability is not None:
        logs = [part.log_probability for _, part in parts if part.log_probability is not None]
        log_probability = average_log(np.stack(logs), weights / weights.sum())
        if np.isnan(log_probability).any():
            return dict.fromkeys(LABEL_METRICS, np.nan)
        first, second = log_probability
        probability = expit(second - first)  # exactly one half where neither is more probable
        return _means(summarize_labels(y, probability, np.where(y > 0.5, second, first)))
    predictive = mixture(parts)
    if not np.isfinite(predictive.means).all():
        return dict.fromkeys(REGRESSION_METRICS, np.nan)
    return score_mixture(predictive, y)


def mixture(parts: Sequence[tuple[float, Prediction]]) -> GaussianMixture:
    """The average of predictions of observations, particles and all."""
    weights = np.array([weight for weight, _ in parts]) / sum(weight for weight, _ in parts)
    means, variances = (np.concatenate([getattr(part, name) for _, part in parts]) for name in ("mean", "variance"))
    n_particles = len(means) // len(parts)
    return GaussianMixture(means, variances, np.log(np.repeat(weights / n_particles, n_particles)))


def score_mixture(predictive: GaussianMixture, y: np.ndarray) -> dict[str, float]:
    """RMSE, NLL, calibration error and coverage of the central 90% of predictions."""
    transform = np.clip(predictive.cdf(y), 0.0, 1.0)
    return _means(
        {
            "rmse": root_mean_square_error(y, predictive.mean()),
            "nll": negative_log_likelihood(predictive.log_density(y)),
            "calibration_error": calibration_error(transform),
            "coverage": (transform >= 0.05) & (transform <= 0.95),
        }
    )


def _spec(draw: Draw, scheme: Scheme, alpha: float, test: TestTask) -> Spec:
    seen = range(scheme.n_source), range(scheme.n_target)
    return Spec(draw, *seen, alpha, test, scheme.prior_std, scheme.trained)


def _log_density(prediction: Prediction, y: np.ndarray) -> np.ndarray:
    if prediction.log_probability is not None:
        return np.where(y > 0.5, prediction.log_probability[1], prediction.log_probability[0])
    return mixture([(1.0, prediction)]).log_density(y)


def _means(values: Mapping[str, np.ndarray | float]) -> dict[str, float]:
    return {name: float(np.mean(value)) for name, value in values.items()}
