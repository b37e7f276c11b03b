"""How good predictions are: of numbers, and of the probabilities of classes.

Arrays have queries on the last axis and tasks before it; those of all classes have classes on the first. Tasks of
unequal size are padded and come with a boolean `mask` of the shape (tasks, queries), True where a query is real; None
means that all are. Padding may hold anything, NaN included.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import counted
from metaprior.conventions import Bunch

CALIBRATION_LEVELS = np.arange(1, 20) / 20
MEANINGS = {
    "rmse": "root mean square error, in the units of y",
    "nll": "negative log likelihood, nats per reading",
    "coverage": "share of readings inside the interval",
    "width": "width of the interval, in the units of y",
    "conformal_coverage": "share of readings inside the conformal interval",
    "conformal_width": "width of the conformal interval, in the units of y",
    "accuracy": "share of labels predicted",
    "probability_accuracy": "mean probability of the observed label",
    "log_loss": "negative log probability, nats per label",
    "brier": "squared error of the probabilities, 0 to 1",
    "calibration_error": "of the probabilities; 0 is perfect",
}
LOSSES = {"rmse": "RMSE", "nll": "NLL", "log_loss": "log loss", "brier": "Brier score"}  # that models are compared by


class Scores(Bunch):
    """How good predictions are: means over tasks, their standard errors and, in `per_task`, the values of every task.

    Printed, it is a table that says what each number means.
    """

    def __repr__(self) -> str:
        meanings = {name: meaning_of(name, self.get("outputs", "readings")) for name in MEANINGS}
        if "nominal_coverage" in self:
            interval = f"the {self.nominal_coverage:.3g} interval"
            meanings["coverage"] = meanings["coverage"].replace("the interval", interval)
        rows = []
        for name in (*self.per_task, "calibration_error"):
            error = self.get(f"{name}_se", np.nan)  # NaN for a single task
            number = f"{self[name]:.3g}" + (f" ± {error:.2g}" if np.isfinite(error) else "")
            rows.append((name, number, meanings[name]))
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        table = [f"{name:<{first}}  {number:<{second}}  {meaning}" for name, number, meaning in rows]
        tasks = counted(self.n_tasks, "test task")
        return "\n".join([f"Means over {tasks} ± standard error; per_task has the values of each.", *table])


def meaning_of(name: str, outputs: str = "readings") -> str:
    """Return what a score means; `outputs` are readings, counts or ranks."""
    return MEANINGS[name].replace("readings", outputs).replace("reading", outputs.removesuffix("s"))


def root_mean_square_error(y: np.ndarray, mean: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return sqrt(1/n Σ_j (y_j − mean_j)²) of each task."""
    mask = check_mask(mask, {"y": y, "mean": mean})
    return np.asarray(np.sqrt(mean_over_queries(_subtract(y, mean, mask) ** 2, mask)))


def negative_log_likelihood(log_density: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return −1/n Σ_j log p(y_j) of each task."""
    mask = check_mask(mask, {"log_density": log_density})
    return np.asarray(-mean_over_queries(log_density, mask))


def calibration_error(
    probability_integral_transform: np.ndarray, mask: np.ndarray | None = None, below: np.ndarray | None = None
) -> float:
    """Return the mean over p = 0.05, 0.10, ..., 0.95 of |F̂(p) − p|, where F̂(p) = 1/n Σ_j 1[u_j <= p].

    u_j = P(Y <= y_j) is the probability integral transform of query j, uniform if the prediction is right. The n
    queries of all tasks are pooled. Perfect is 0; half of the u_j at 0 and half at 1 (intervals far too narrow, no
    bias) is 9/38 ≈ 0.237; all of them at one end is 0.5.

    Of counts and ranks, `below` is P(Y < y_j). Then u_j is uniform between the two, and its indicator is replaced by
    the probability that u_j <= p (Czado, Gneiting and Held, 2009).
    """
    mask = check_mask(mask, {"probability_integral_transform": probability_integral_transform})
    if below is not None:
        share = shares_below(below[mask], probability_integral_transform[mask])
        return float(np.mean(np.abs(np.mean(share, axis=0) - CALIBRATION_LEVELS)))
    transform = np.sort(probability_integral_transform[mask])
    if not ((transform >= 0) & (transform <= 1)).all():
        raise ValueError("probability_integral_transform must lie in [0, 1]; got values outside, or nan")
    frequency = np.searchsorted(transform, CALIBRATION_LEVELS, side="right") / transform.size
    return float(np.mean(np.abs(frequency - CALIBRATION_LEVELS)))


def shares_below(below: np.ndarray, up_to: np.ndarray) -> np.ndarray:
    """Return the probability that u, uniform between P(Y < y) and P(Y <= y), is at most each level, (..., levels)."""
    width = np.maximum(up_to - below, 1e-300)[..., None]
    return np.clip((CALIBRATION_LEVELS - below[..., None]) / width, 0.0, 1.0)


def interval_coverage(
    y: np.ndarray, lower: np.ndarray, upper: np.ndarray, mask: np.ndarray | None = None
) -> np.ndarray:
    """Return the fraction of queries with lower <= y <= upper, of each task."""
    mask = check_mask(mask, {"y": y, "lower": lower, "upper": upper})
    return mean_over_queries(((lower <= y) & (y <= upper)).astype(np.float64), mask)


def interval_width(lower: np.ndarray, upper: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return the mean of upper − lower of each task."""
    mask = check_mask(mask, {"lower": lower, "upper": upper})
    return mean_over_queries(_subtract(upper, lower, mask), mask)


def mean_and_standard_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean over tasks and its standard error s / √n, with s² = 1/(n − 1) Σ_i (v_i − mean)².

    The standard error of a single task is NaN.
    """
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"values must have shape (tasks,) with at least one task; got {values.shape}")
    values = values.astype(np.float64)
    standard_error = np.std(values, ddof=1) / np.sqrt(values.size) if values.size > 1 else np.nan
    return float(np.mean(values)), float(standard_error)


def summarize(
    mixture: Any, y: np.ndarray, mask: np.ndarray | None = None, coverage: float = 0.9
) -> dict[str, np.ndarray | float]:
    """Return 'rmse', 'nll', 'coverage' and 'width' of the central interval per task, and 'calibration_error'."""
    if y.shape != mixture.means.shape[1:]:
        raise ValueError(f"y must have shape {mixture.means.shape[1:]}, the mixture's points; got {y.shape}")
    mask = check_mask(mask, {"y": y})
    # A standard normal in place of padding, where an infinity would warn.
    y = np.where(mask, y, 0.0)
    mixture = dataclasses.replace(
        mixture, means=np.where(mask, mixture.means, 0.0), variances=np.where(mask, mixture.variances, 1.0)
    )
    lower, upper = mixture.interval(coverage)
    below = mixture.below(y) if getattr(mixture, "is_discrete", False) else None
    return {
        "rmse": root_mean_square_error(y, mixture.mean(), mask),
        "nll": negative_log_likelihood(mixture.log_density(y), mask),
        "coverage": interval_coverage(y, lower, upper, mask),
        "width": interval_width(lower, upper, mask),
        "calibration_error": calibration_error(mixture.cdf(y), mask, below),
    }


def report(summary: dict[str, Any], nominal_coverage: float | None = None) -> Scores:
    """Return means and standard errors over tasks of the result of `summarize` or `summarize_labels`."""
    per_task = {name: values for name, values in summary.items() if name != "calibration_error"}
    figures: dict[str, Any] = {} if nominal_coverage is None else {"nominal_coverage": nominal_coverage}
    for name, values in per_task.items():
        figures[name], figures[f"{name}_se"] = mean_and_standard_error(values)
    figures |= {"calibration_error": summary["calibration_error"], "per_task": Bunch(**per_task)}
    return Scores(**figures, n_tasks=len(next(iter(per_task.values()))))


def check_mask(mask: np.ndarray | None, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the mask, all True for None; raise unless all shapes agree and every task has a query."""
    first, *others = arrays
    shape = arrays[first].shape
    if len(shape) == 0:
        raise ValueError(f"{first} must have queries on its last axis; got a scalar")
    for name in others:
        if arrays[name].shape != shape:
            raise ValueError(f"{name} must have the shape of {first} {shape}; got {arrays[name].shape}")
    if mask is None:
        mask = np.ones(shape, dtype=bool)
    if mask.shape != shape or mask.dtype != np.bool_:
        raise ValueError(f"mask must be boolean of shape {shape}; got {mask.dtype} of shape {mask.shape}")
    if mask.size == 0 or not mask.any(axis=-1).all():
        raise ValueError(f"{first} must have a valid query in every task; got a task with none")
    return mask


def _subtract(left: np.ndarray, right: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return left − right where the mask is True and zero elsewhere, where padding such as inf − inf would warn."""
    return np.subtract(left, right, out=np.zeros(mask.shape), where=mask)


def mean_over_queries(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the mean over queries of each task."""
    return np.asarray(np.mean(values, axis=-1, where=mask, dtype=np.float64))


ROUNDING = 1e-5  # by which a float32 log-sum-exp may exceed log 1
SAME = 1e-9  # difference by which two probabilities are the same, up to rounding
N_BINS = 15  # of confidence
LOG_TINY = float(np.log(np.finfo(np.float64).tiny))  # for a probability of zero: the mean over tasks stays finite


class LabelOutcomes(NamedTuple):
    """How well the class of every query was predicted, (tasks, queries) each."""

    y: np.ndarray  # the number of the observed class
    predicted: np.ndarray  # that of the most probable class
    confidence: np.ndarray  # its probability
    right: np.ndarray  # 1 where it was observed, 0 where not; 1/m where m equally probable classes contain the observed
    probability: np.ndarray  # of the observed class
    log_probability: np.ndarray  # the same, accurate where it is small
    squared_error: np.ndarray  # half of sum_c (p_c - 1[c = y])^2
    mask: np.ndarray
    n_classes: int  # the largest number of possible classes of a query, at least two


def summarize_labels(
    y: np.ndarray, log_probabilities: np.ndarray, mask: np.ndarray | None = None
) -> dict[str, np.ndarray | float]:
    """Return 'accuracy', 'probability_accuracy', 'log_loss', 'brier' per task, and 'calibration_error' of all queries.

    y holds class codes 0, 1, ...; `log_probabilities` (classes, tasks, queries) are minus infinity for classes that a
    task does not have.

    - accuracy: the fraction of queries whose most probable class was observed. One of m equally probable classes counts
      as 1/m, as guessing would.
    - probability_accuracy: the mean probability of the observed classes, 1 - |p - y| for two classes.
    - log_loss: minus the mean log probability of the observed classes; a probability of zero counts as 2e-308.
    - brier: the mean of 1/2 sum_c (p_c - 1[c = y])^2, from 0 to 1. This is scikit-learn's brier_score_loss, with
      scale_by_half=True for more than two classes.
    - calibration_error: sum_b n_b/n |mean confidence - fraction right| over bins b of the confidence, the probability
      of the most probable class. 15 bins (lower, upper] divide [1/k, 1] equally, where k is the largest number of
      classes of a query; the first includes 1/k. The n queries of all tasks are pooled.
    """
    return _summary(label_outcomes(y, log_probabilities, mask))


def score_labels(
    y: np.ndarray, log_probabilities: np.ndarray, mask: np.ndarray | None = None, classes: np.ndarray | None = None
) -> Scores:
    """Return the scores of `summarize_labels`, and the counts that reliability and confusion are drawn from.

    `reliability` has, for the bins between `edges`, the number of queries, their total confidence and how many were
    right, (tasks, bins) each. `confusion` (classes, classes) counts queries by observed and predicted class; it is None
    without the names of the `classes` that all tasks share.
    """
    outcomes = label_outcomes(y, log_probabilities, mask)
    scores = report(_summary(outcomes))
    scores.update(reliability=confidence_bins(outcomes), classes=classes, confusion=None)
    if classes is not None and outcomes.y.max() < len(classes) > outcomes.predicted.max():  # else a task has its own
        pairs = (outcomes.y * len(classes) + outcomes.predicted)[outcomes.mask]
        scores["confusion"] = np.bincount(pairs, minlength=len(classes) ** 2).reshape(len(classes), len(classes))
    return scores


def label_outcomes(y: np.ndarray, log_probabilities: np.ndarray, mask: np.ndarray | None = None) -> LabelOutcomes:
    """Check codes of classes and log probabilities, and return how well every query was predicted."""
    if log_probabilities.shape[1:] != y.shape or not len(log_probabilities):
        expected = f"(classes, {', '.join(map(str, y.shape))}), as y has the shape {y.shape}"
        raise ValueError(f"log_probabilities must have the shape {expected}; got {log_probabilities.shape}")
    mask = check_mask(mask, {"y": y})
    check_codes("y", y[mask], len(log_probabilities))
    log_p = np.where(mask, log_probabilities, 0.0).astype(np.float64)
    if not ((log_p <= ROUNDING).all() and (log_p.max(axis=0) > -np.inf).all()):
        advice = "at most 0, and minus infinity for some classes of a query but not for all"
        raise ValueError(f"log_probabilities must be logarithms of probabilities, {advice}; got more, or nan")
    codes = np.where(mask, y, 0).astype(np.int64)
    p = np.exp(log_p - log_p.max(axis=0))
    p /= p.sum(axis=0)
    confidence = p.max(axis=0)
    best = p > confidence - SAME
    observed, log_observed, is_best = (np.take_along_axis(of, codes[None], axis=0)[0] for of in (p, log_p, best))
    squared = np.sum(p**2, axis=0) - observed**2 + (1.0 - observed) ** 2
    possible = np.sum(log_p > -np.inf, axis=0)[mask]
    return LabelOutcomes(
        y=codes,
        predicted=np.argmax(p, axis=0),
        confidence=confidence,
        right=is_best / np.sum(best, axis=0),
        probability=observed,
        log_probability=np.where(log_observed == -np.inf, LOG_TINY, log_observed),
        squared_error=squared / 2.0,
        mask=mask,
        n_classes=max(int(possible.max()), 2),
    )


def confidence_bins(outcomes: LabelOutcomes, n_bins: int = N_BINS) -> Bunch:
    """Return the edges of bins and, (tasks, bins), their queries, total confidence and number of queries right."""
    edges = np.linspace(1.0 / outcomes.n_classes, 1.0, n_bins + 1)
    mask = outcomes.mask.reshape(-1, outcomes.mask.shape[-1])
    tasks = np.repeat(np.arange(len(mask)), mask.sum(axis=1))
    bins = np.searchsorted(edges[1:-1] + SAME, outcomes.confidence[outcomes.mask])
    total = lambda weights: np.bincount(tasks * n_bins + bins, weights, len(mask) * n_bins).reshape(-1, n_bins)  # noqa: E731
    confidence, right = (total(values[outcomes.mask]) for values in (outcomes.confidence, outcomes.right))
    return Bunch(edges=edges, count=total(None), confidence=confidence, right=right)


def expected_calibration_error(bins: Bunch) -> float:
    """Return sum_b n_b/n |mean confidence - fraction right| of the result of `confidence_bins`."""
    gaps = np.sum(bins.confidence, axis=0) - np.sum(bins.right, axis=0)
    return float(np.sum(np.abs(gaps)) / np.sum(bins.count))


def check_codes(name: str, y: np.ndarray, n_classes: int) -> None:
    """Raise unless every entry is the number of a class; `name` is the argument named in the error."""
    strange = y[~np.isin(y, np.arange(n_classes))]
    if strange.size:
        raise ValueError(f"{name} must hold the numbers of classes, 0 to {n_classes - 1}; got {strange[0]}")


def _summary(outcomes: LabelOutcomes) -> dict[str, np.ndarray | float]:
    """Return the metrics of `summarize_labels`."""
    per_task = {
        "accuracy": outcomes.right,
        "probability_accuracy": outcomes.probability,
        "log_loss": -outcomes.log_probability,
        "brier": outcomes.squared_error,
    }
    means: dict[str, Any] = {name: mean_over_queries(values, outcomes.mask) for name, values in per_task.items()}
    return {**means, "calibration_error": expected_calibration_error(confidence_bins(outcomes))}
