"""Does the source help? What the search for alpha found, in words, as a table and as a plot."""

import dataclasses
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprior.metrics.regression import mean_and_standard_error
from metaprior.search.selection import Choice


@dataclass(frozen=True, eq=False)
class TransferReport:
    """The settings that were compared on held-out target tasks. `print` it, or call `plot`.

    Scores are log densities per reading (of a label: log probabilities), averaged over target tasks; higher is better.
    A gain is a score less that of target-only, and its standard error is that of the paired difference. Without a
    search there are weights, but no scores.
    """

    names: tuple[str, ...]  # of the environments
    target: str
    n_target_tasks: int
    environment_weights: np.ndarray  # (candidates, environments)
    temperature: np.ndarray  # (candidates,), as a multiple of that of the first
    prior_std: np.ndarray  # (candidates,), as a multiple of that of the first
    weight: np.ndarray  # (candidates,): in the average that predicts
    score: np.ndarray | None = None
    standard_error: np.ndarray | None = None
    gain: np.ndarray | None = None  # None also where target-only was not among the candidates
    gain_standard_error: np.ndarray | None = None
    source_gain: tuple[float, float] | None = None  # of those with a source, averaged by weight; and its standard error
    n_source_tasks: int | None = None  # of all sources together; None in files that do not say

    @property
    def alpha(self) -> np.ndarray:
        """(candidates,): the weight of all sources together."""
        return np.delete(self.environment_weights, self.names.index(self.target), axis=1).sum(axis=1)

    @property
    def pooled_alpha(self) -> float | None:
        """The alpha at which every task weighs the same; None where it is not known."""
        return (
            None if self.n_source_tasks is None else self.n_source_tasks / (self.n_source_tasks + self.n_target_tasks)
        )

    @property
    def verdict(self) -> str:
        """One or two sentences: does the source help, by how much, how sure."""
        alpha = float(self.weight @ self.alpha)
        if self.score is None:
            return f"Nothing was compared: alpha = {alpha:.2g}{self._why()}."
        if not self.alpha.any():
            return "There was no source to compare: alpha = 0."
        if self.source_gain is None:
            return f"alpha = {alpha:.2g} on average. Target-only (alpha = 0) was not among what was compared."
        gain, error = self.source_gain
        sure = abs(gain) / error if error > 0 else np.inf
        found = (
            f"{gain:+.3f} ± {error:.3f} per reading against target-only, on {self.n_target_tasks} held-out target tasks"
        )
        if sure < 1:
            return f"Whether the source helps cannot be told: {found}. alpha = {alpha:.2g} on average."
        helps = "helps" if gain > 0 else "does not help"
        surely = "" if sure > 2 else "probably "
        return f"The source {surely}{helps}: {found}. alpha = {alpha:.2g} on average."

    def rows(self) -> list[tuple[str, ...]]:
        """Table of candidates: description, score, gain over target-only, weight in the average."""
        nothing = ["-"] * len(self.weight)
        scores = nothing if self.score is None else _with_errors(self.score, self.standard_error)
        gains = nothing if self.gain is None else _with_errors(self.gain, self.gain_standard_error, sign="+")
        weights = [f"{weight:.2f}" if weight > 0 else "-" for weight in self.weight]
        return list(zip(map(self.describe, range(len(self.weight))), scores, gains, weights, strict=True))

    def describe(self, candidate: int) -> str:
        """What a candidate is, in a few words."""
        weights = self.environment_weights[candidate]
        text = f"alpha = {self.alpha[candidate]:.2g}"
        if len(self.names) > 2 and self.alpha[candidate] > 0.0:
            sources = [pair for pair in zip(self.names, weights, strict=True) if pair[0] != self.target and pair[1]]
            text = ", ".join(f"{name[:12]} {weight:.2g}" for name, weight in sources[:3])
            text += f" and {len(sources) - 3} more" if len(sources) > 3 else ""
        special = " (target-only)" if self.alpha[candidate] == 0.0 else ""
        special = " (source-only)" if weights[self.names.index(self.target)] == 0.0 else special
        for name, values in (("temperature", self.temperature), ("prior_std", self.prior_std)):
            if values[candidate] != 1.0:
                special += f", {name} x {values[candidate]:g}"
        return text + special

    def __str__(self) -> str:
        header = ("settings", "score", "gain", "weight")
        rows = [header, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        lines.insert(1, "-" * len(lines[0]))
        shares = ", ".join(
            f"{name} {share:.2f}"
            for name, share in zip(self.names, self.weight @ self.environment_weights, strict=True)
        )
        words = [self.verdict, f"Weights of the environments, on average: {shares}."]
        return "\n".join([*(textwrap.fill(text, 80) for text in words), "", *lines])

    __repr__ = __str__

    def plot(self) -> Any:
        """Gain of every candidate over target-only and its weight in the average, as a matplotlib figure."""
        from matplotlib.figure import Figure

        from metaprior.plots import plot_candidates

        figure = Figure(figsize=(8, 1.6 + 0.34 * len(self.weight)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        labels = [self.describe(i) for i in range(len(self.weight))]
        values, errors = (
            (self.gain, self.gain_standard_error) if self.gain is not None else (self.score, self.standard_error)
        )
        plot_candidates(left, right, labels, values, errors, self.weight)
        left.set_xlabel("gain over target-only, nats per reading" if self.gain is not None else "score")
        figure.suptitle(self.verdict, fontsize=9, wrap=True)
        return figure

    def to_json(self) -> dict[str, Any]:
        """The report as plain lists and numbers."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "TransferReport":
        """What `to_json` gave, as a report again."""
        stored = {"n_source_tasks": None, **stored}
        given = {field.name: stored[field.name] for field in dataclasses.fields(cls)}
        tuples = {name: given[name] and tuple(given[name]) for name in ("names", "source_gain")}
        arrays = {
            name: np.asarray(value, float)
            for name, value in given.items()
            if isinstance(value, list) and name not in tuples
        }
        return cls(**{**given, **arrays, **tuples})

    def _why(self) -> str:
        if len(self.weight) > 1:
            return " on average, as nothing could be held out"
        return ""


def make_report(
    choice: Choice, names: tuple[str, ...], target: int, n_target_tasks: int, n_source_tasks: int | None = None
) -> TransferReport:
    """The report of a choice."""
    candidates, base = choice.candidates, choice.candidates[0].settings
    weights = np.array([candidate.weights for candidate in candidates])
    report = TransferReport(
        names,
        names[target],
        n_target_tasks,
        weights,
        np.array([c.settings.temperature_factor / base.temperature_factor for c in candidates]),
        np.array([c.settings.prior_std["weights"] / base.prior_std["weights"] for c in candidates]),
        choice.weights,
        n_source_tasks=n_source_tasks,
    )
    if choice.scores is None:
        return report
    score, standard_error = _over_tasks(choice.scores)
    report = dataclasses.replace(report, score=score, standard_error=standard_error)
    plain = (report.alpha == 0.0) & (report.temperature == 1.0) & (report.prior_std == 1.0)
    if not plain.any() or not np.isfinite(score[plain.argmax()]):
        return report
    of_target = choice.scores[plain.argmax()]
    gain, gain_error = _over_tasks(choice.scores - of_target)
    source_gain = _source_gain(choice.scores - of_target, report)
    return dataclasses.replace(report, gain=gain, gain_standard_error=gain_error, source_gain=source_gain)


def _source_gain(gains: np.ndarray, report: TransferReport) -> tuple[float, float] | None:
    """What settings with a source gain per task, averaged by their weights; by all alike if none has any.

    At the temperature and hyper-prior of target-only: what others gain is not the source's.
    """
    plain = (report.temperature == 1.0) & (report.prior_std == 1.0)
    comparable = plain & (report.alpha > 0.0) & np.isfinite(gains).all(axis=1)
    weights = np.where(comparable, report.weight, 0.0)
    weights = weights if weights.any() else comparable.astype(float)
    if not comparable.any():
        return None
    return mean_and_standard_error(weights[comparable] @ gains[comparable] / weights.sum())


def _over_tasks(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over tasks and its standard error, minus infinity and NaN for what diverged."""
    finite = np.isfinite(scores).all(axis=1)
    means, errors = np.full(len(scores), -np.inf), np.full(len(scores), np.nan)
    pairs = [mean_and_standard_error(row) for row in scores[finite]]
    means[finite], errors[finite] = np.array(pairs).T if pairs else ([], [])
    return means, errors


def _with_errors(values: np.ndarray, errors: np.ndarray | None, sign: str = "") -> list[str]:
    errors = np.full(len(values), np.nan) if errors is None else errors
    pairs = zip(values.tolist(), errors.tolist(), strict=True)
    return [f"{value:{sign}.3f} ± {error:.3f}" if np.isfinite(value) else "diverged" for value, error in pairs]
