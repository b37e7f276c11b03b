"""What held-out tasks certify about transfer, and the weighted free energy as a PAC-Bayes diagnostic.

The transfer report: does the source help? The result of the search in words, as a table and as a plot.
"""

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtrc, betaincinv, stdtr

from metaprior.checks import counted, require_matplotlib
from metaprior.conventions import own_float_errors
from metaprior.metrics import mean_and_standard_error
from metaprior.prior.families import FAMILIES, LINEAR, NO_COVARIATES, SMOOTH, FamilyFit
from metaprior.search.averaging import Choice, averaging_weights, select_weights
from metaprior.tasks.types import Task

CONFIDENCE = 0.95
WITHOUT_DATA = (LINEAR, SMOOTH)  # families whose functions do not depend on y; those of the others do


class Certificate(NamedTuple):
    """How many tasks are predicted better by one prior than by another, and what that says about new tasks."""

    helped: int
    tied: int  # predicted equally well, which counts as not helped
    n_tasks: int

    @property
    def lower_bound(self) -> float:
        """The lower 95% confidence bound of Clopper and Pearson on the chance that a new task is predicted better.

        It is exact for independent tasks that neither prior has seen.
        """
        if not self.helped:
            return 0.0
        return float(betaincinv(self.helped, self.n_tasks - self.helped + 1, 1.0 - CONFIDENCE))

    @property
    def p_value(self) -> float:
        """That of the one-sided sign test of "as often worse as better"; ties are left out."""
        return float(bdtrc(self.helped - 1, self.n_tasks - self.tied, 0.5))

    @property
    def words(self) -> str:
        """The share of tasks and the bound, without a full stop."""
        helped = f"{self.helped} of {counted(self.n_tasks, 'task')} are predicted better"
        tied = f" ({self.tied} equally well)" if self.tied else ""
        least = np.floor(100.0 * self.lower_bound)
        return f"{helped}{tied}; for a new task the chance is at least {least:.0f}% (95% confidence, Clopper-Pearson)"


def certify(gains: np.ndarray) -> Certificate:
    """Count the tasks with a gain."""
    return Certificate(int(np.sum(gains > 0)), int(np.sum(gains == 0)), len(gains))


def free_energy(fit: FamilyFit, environments: Sequence[Sequence[Task]]) -> float:
    """Return the weighted free energy at the Gibbs hyper-posterior, in nats per reading: smaller is better.

    It is -log Z / n, where Z is the integral of p(theta) times the weighted evidence, by Laplace's approximation at the
    mode of theta, with the Hessian that the quasi-Newton method has found on its way there, and n the number of
    readings, weighted as their tasks are. NaN if no family that qualifies is there.
    """
    values = []
    for name in WITHOUT_DATA:
        if name not in fit.modes or name not in fit.priors or fit.priors[name].counts is None:
            continue
        mode, prior = fit.modes[name], fit.priors[name]
        sizes = [sum(len(task.y) for task in tasks) for tasks in environments]
        n = float(prior.counts @ sizes)  # type: ignore[operator]
        log_determinant = np.linalg.slogdet(mode.inverse_hessian)[1]
        hyper_prior = -float(np.log(mode.layout.spread).sum())  # factors of 2 pi cancel Laplace's
        log_z = mode.value - 0.5 * n * np.log(2.0 * np.pi) + hyper_prior + 0.5 * log_determinant
        values.append(-log_z / n + np.log(prior.scaling.y_std))
    return float(min(values, default=np.nan))


# Levels of the one-sided t test behind "helps" and "probably helps". If no candidate has any effect and gains are about
# normal, "helps" comes out in at most 4% of reports, not 1%: the gains of two tasks are correlated, since each chooses
# weights for the other. Gains with a long tail of losses break it (docs/choosing-alpha.md).
CERTAIN, PROBABLE = 0.99, 0.84
UNCLEAR = "unclear"
MAX_NAMED = 4  # sources in the plain words
MAX_GROUPS = 20  # of target tasks, each weighted by the others
NO_SOURCE = "All tasks are of one environment: there is no source whose weight could be chosen."
# Of held-out ones, by what y holds.
SCORES = {"readings": "log density", **dict.fromkeys(("labels", "counts", "ranks"), "log probability")}
UNUSED = 0.005  # weight of all sources below which they are not used, as it is printed
DISAGREE = 2.0  # times the other gain, from which on the robust and the plain gain disagree


@own_float_errors
@dataclass(frozen=True, eq=False)
class TransferReport:
    """The settings that were compared by cross-validation over target tasks. Print it, or call `plot`.

    Scores are robust log densities per reading (log probabilities of labels): those of a mixture of 90% the prediction
    and 10% a broad distribution, so that single readings far off do not decide. They are averaged over target tasks;
    higher is better. A gain is a score minus that of target-only, with the standard error of the paired difference.
    Without a search there are weights but no scores.

    Attributes
    ----------
    names : tuple of str
        The environments.
    target : str
        The target environment.
    n_target_tasks, n_source_tasks : int
        Numbers of tasks.
    environment_weights : ndarray of shape (n_candidates, n_environments)
        Weights of the environments in the meta-training loss.
    temperature, prior_std : ndarray of shape (n_candidates,)
        Relative to those of the first candidate.
    weight : ndarray of shape (n_candidates,)
        Weight of each candidate in the averaged prediction.
    score, standard_error, gain, gain_standard_error : ndarray of shape (n_candidates,) or None
        Scores and gains with their standard errors over target tasks.
    source_gain : tuple of (gain, standard error) or None
        Gain of the candidates with a source, averaged by weights. Those for a task come from the other target tasks.
    plain_gain : tuple of (gain, standard error) or None
        The same gain in plain log density, in which single readings far off count in full.
    covariates : dict or None
        Weights of what covariates do to the common mean, if there are any.
    hint : str
        What to change, if covariates seem to act together; else empty.
    environment_effect : ndarray of shape (n_candidates,) or None
        Whether the target's common mean may deviate from that of the sources.
    families : dict or None
        The families of priors that were compared, with their weights in the averaged prediction.
    outputs : "readings", "labels", "counts" or "ranks"
        What y holds.
    certificate : Certificate or None
        How many held-out target tasks the source has helped: `helped`, `tied` and `n_tasks`, `lower_bound` on the
        chance that it helps a new one (95%, Clopper-Pearson), and the `p_value` of the sign test.
    free_energy : ndarray of shape (n_candidates,) or None
        The weighted free energy in nats per reading, a PAC-Bayes diagnostic: a bound on the loss of new target tasks
        would need the divergence between the environments too, which is not known.
    """

    names: tuple[str, ...]
    target: str
    n_target_tasks: int
    environment_weights: np.ndarray
    temperature: np.ndarray
    prior_std: np.ndarray
    weight: np.ndarray
    score: np.ndarray | None = None
    standard_error: np.ndarray | None = None
    gain: np.ndarray | None = None  # None also if target-only was not a candidate
    gain_standard_error: np.ndarray | None = None
    source_gain: tuple[float, float] | None = None
    n_source_tasks: int | None = None  # None in files written before it was recorded
    environment_effect: np.ndarray | None = None
    families: dict[str, float] | None = None
    outputs: str = "readings"
    certificate: Certificate | None = None
    free_energy: np.ndarray | None = None
    plain_gain: tuple[float, float] | None = None
    covariates: dict[str, float] | None = None
    hint: str = ""

    @property
    def alpha(self) -> np.ndarray:
        """(n_candidates,): the total weight of the sources."""
        return np.delete(self.environment_weights, self.names.index(self.target), axis=1).sum(axis=1)

    @property
    def pooled_alpha(self) -> float | None:
        """The alpha at which every task weighs the same, or None if it is not known."""
        return (
            None if self.n_source_tasks is None else self.n_source_tasks / (self.n_source_tasks + self.n_target_tasks)
        )

    @property
    def unit(self) -> str:
        """The unit of scores and gains."""
        return f"nats per {self.outputs.removesuffix('s')}"

    @property
    def verdict(self) -> str:
        """One or two sentences: does the source help, by how much, and how certain is that."""
        alpha = float(self.weight @ self.alpha)
        if self.score is None:
            why = " on average, because no target task could be held out" if len(self.weight) > 1 else ""
            return f"Nothing was compared: alpha = {alpha:.2g}{why}."
        if not self.alpha.any():
            return NO_SOURCE if not self.n_source_tasks else "The source was not tried: alpha = 0 (target-only)."
        if self.source_gain is None:
            return f"alpha = {alpha:.2g} on average. Target-only (alpha = 0) was not among the candidates."
        gain, error = self.source_gain
        held_out = f"{self.n_target_tasks} held-out target tasks"
        found = f"{gain:+.3f} ± {error:.3f} {self.unit} over target-only, on {held_out}"
        if self.is_unused:
            return f"The source is not used: {self.why_unused} Without that, settings with it scored {found}."
        end = f"{found}. alpha = {alpha:.2g} on average.{self.disagreement}"
        if self.judgment == UNCLEAR:
            return f"It is unclear whether the source helps: {end}"
        return f"The source {self.judgment}: {end}"

    @property
    def is_unused(self) -> bool:
        """Whether settings with sources gained, and have no weight in predictions."""
        return self.source_gain is not None and self.source_gain[0] > 0 and float(self.weight @ self.alpha) < UNUSED

    @property
    def why_unused(self) -> str:
        """A sentence: why sources have no weight."""
        used = 0.0 if self.covariates is None else 1.0 - self.covariates[NO_COVARIATES]
        if used < 0.5:
            return "settings of the target alone have all the weight."
        return f"effects of covariates decided, as they are in tasks of {self.target} alone."

    @property
    def disagreement(self) -> str:
        """A sentence if the gain in plain log density has another sign or size than the robust one, else nothing."""
        if self.source_gain is None or self.plain_gain is None:
            return ""
        robust, plain = self.source_gain[0], self.plain_gain[0]
        error = max(self.source_gain[1], self.plain_gain[1])
        if robust * plain > 0 and abs(plain) <= DISAGREE * abs(robust) + error:
            return ""
        if robust * plain <= 0 and abs(plain - robust) <= error:
            return ""
        few = f"a few {self.outputs} far from their predictions decide which is larger"
        return f" In plain {SCORES[self.outputs]} the gain is {plain:+.3f} ± {self.plain_gain[1]:.3f}: {few}."

    @property
    def judgment(self) -> str | None:
        """Whether the source helps: "helps" or "does not help", both also with "probably", "unclear", or None."""
        if self.source_gain is None:
            return None
        gain, error = self.source_gain
        certainty = stdtr(self.n_target_tasks - 1, abs(gain) / error) if error > 0 else float(gain != 0.0)
        if certainty < PROBABLE:
            return UNCLEAR
        helps = "helps" if gain > 0 else "does not help"
        return helps if certainty > CERTAIN else f"probably {helps}"

    @property
    def plain_words(self) -> str:
        """Two sentences without symbols: does the source help new target tasks, and how much does it count."""
        if self.n_source_tasks == 0 or len(self.names) == 1:
            one = "All tasks come from one environment, so there is nothing to transfer."
            return f"{one} A new task is predicted from what these {self.n_target_tasks} tasks have in common."
        sources = [name for name in self.names if name != self.target]
        shares = dict(zip(self.names, self.weight @ self.environment_weights, strict=True))
        others = sources[0] if len(sources) == 1 else "the other environments"
        listed = [f"{name} {100.0 * shares[name]:.0f}%" for name in sources[:MAX_NAMED]]
        rest = f" and {len(sources) - MAX_NAMED} more" if len(sources) > MAX_NAMED else ""
        counts = f"Weights in predictions: {', '.join(listed)}{rest}, {self.target} {100.0 * shares[self.target]:.0f}%."
        if self.judgment is None:
            return f"It was not measured whether the tasks of {others} help to predict those of {self.target}. {counts}"
        assert self.source_gain is not None
        if self.is_unused:
            return f"The tasks of {others} are not used: {self.why_unused} {counts}"
        change = 100.0 * math.expm1(min(self.source_gain[0], 700.0))
        more = f"{abs(change):.2g}% {'more' if change >= 0 else 'less'} probable"
        held_out = f"left-out {self.outputs} of {self.target} are on average {more} with them than without"
        if self.judgment == UNCLEAR:
            words = f"It is unclear whether the tasks of {others} help to predict new tasks of {self.target}"
        else:
            words = f"The tasks of {others} {self.judgment.replace('helps', 'help').replace('does', 'do')} to predict "
            words += f"new tasks of {self.target}"
        return f"{words}: {held_out} in the robust score. {counts}{self.disagreement}"

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row for every candidate: description, score, gain over target-only, weight."""
        nothing = ["-"] * len(self.weight)
        scores = nothing if self.score is None else _with_errors(self.score, self.standard_error)
        gains = nothing if self.gain is None else _with_errors(self.gain, self.gain_standard_error, sign="+")
        weights = [f"{weight:.2f}" if weight > 0 else "-" for weight in self.weight]
        return list(zip(map(self.describe, range(len(self.weight))), scores, gains, weights, strict=True))

    def describe(self, candidate: int) -> str:
        """Describe a candidate in a few words."""
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
        if self.environment_effect is not None and self.environment_effect[candidate]:
            special += ", own mean"
        return text + special

    @property
    def family_words(self) -> str:
        """A sentence on the families of priors that predictions are averaged over.

        Those of readings are always tried. Those of labels that are missing were ruled out by the evidence.
        """
        if not self.families:
            return ""
        used = {name: weight for name, weight in self.families.items() if weight >= 0.005}
        listed = ", ".join(f"{name} {used[name]:.2f}" for name in sorted(used, key=lambda name: -used[name]))
        missing = [name for name in FAMILIES if name not in self.families and self.outputs != "labels"]
        left_out = f" Left out, because they could not be fitted: {', '.join(missing)}." if missing else ""
        return f"Weights of the families of priors: {listed}.{left_out}"

    @property
    def diagnostic_words(self) -> str:
        """A sentence on the weighted free energy of the candidates that predictions are averaged over."""
        if self.free_energy is None:
            return ""
        value = float(self.weight @ self.free_energy)
        return f"PAC-Bayes diagnostic: weighted free energy of {value:.3f} {self.unit} (not a bound)."

    @property
    def score_words(self) -> str:
        """What scores and gains are."""
        what = SCORES[self.outputs]
        scored = f"robust {what} of held-out {self.outputs}, in {self.unit}, ± standard error over target tasks"
        text = f"Scores: {scored}; higher is better. Gains: over target-only."
        if self.plain_gain is not None:
            text += " Gain of the source in plain {}: {:+.3f} ± {:.3f}.".format(what, *self.plain_gain)
        return text

    def __str__(self) -> str:
        if self.n_source_tasks == 0 or len(self.names) == 1:  # a table would have one row, of dashes
            words = [each for each in (NO_SOURCE, self.family_words, self.hint) if each]
            return "\n".join(textwrap.fill(text, 80) for text in words)
        header = ("settings", "robust score", "gain", "weight")
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
        words += [] if self.certificate is None else [f"Held out, with the source: {self.certificate.words}."]
        words += [each for each in (self.family_words, self.diagnostic_words, self.hint) if each]
        words += [] if self.score is None else [self.score_words]
        return "\n".join([*(textwrap.fill(text, 80) for text in words), "", *lines])

    __repr__ = __str__

    def plot(self) -> Any:
        """Plot the gain of every candidate over target-only and its weight.

        Returns
        -------
        matplotlib.figure.Figure
        """
        require_matplotlib()
        from matplotlib.figure import Figure

        from metaprior.plots import plot_candidates
        from metaprior.plots.style import as_drawn

        figure = Figure(figsize=(8, 1.6 + 0.34 * len(self.weight)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        labels = [self.describe(i) for i in range(len(self.weight))]
        values, errors = (
            (self.gain, self.gain_standard_error) if self.gain is not None else (self.score, self.standard_error)
        )
        plot_candidates(left, right, labels, values, errors, self.weight)
        left.set_xlabel(
            f"gain over target-only in the robust score, {self.unit}" if self.gain is not None else "robust score"
        )
        figure.suptitle(as_drawn(self.verdict), fontsize=9, wrap=True)
        return figure

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dict of lists and numbers."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "TransferReport":
        """Make a report from what `to_json` returned; fields that are missing have their defaults, null is NaN."""
        given: dict[str, Any] = dict(stored)
        for name, each in stored.items():
            if name in ("names", "source_gain", "plain_gain") and each is not None:
                given[name] = tuple(np.nan if item is None else item for item in each)
            elif name == "certificate" and each is not None:
                given[name] = Certificate(*each)
            elif isinstance(each, list):
                given[name] = np.asarray(each, bool if name == "environment_effect" else float)
        return cls(**given)


def make_report(
    choice: Choice,
    names: tuple[str, ...],
    target: int,
    n_target_tasks: int,
    n_source_tasks: int | None = None,
    families: dict[str, float] | None = None,
    covariates: dict[str, float] | None = None,
    hint: str = "",
) -> TransferReport:
    """Make the report of a choice."""
    candidates = choice.candidates
    weights = np.array([candidate.weights for candidate in candidates])
    temperature, prior_std = np.array([_scales(candidate.settings) for candidate in candidates]).T
    effects = [bool(getattr(candidate.settings, "environment", False)) for candidate in candidates]
    report = TransferReport(
        names,
        names[target],
        n_target_tasks,
        weights,
        temperature / temperature[0],
        prior_std / prior_std[0],
        choice.weights,
        n_source_tasks=n_source_tasks,
        environment_effect=None if not any(effects) else np.array(effects),
        families=families,
        covariates=covariates,
        hint=hint,
        free_energy=choice.free_energy,
    )
    if choice.scores is None:
        return report
    score, standard_error = _over_tasks(choice.scores)
    report = dataclasses.replace(report, score=score, standard_error=standard_error)
    plain = (report.alpha == 0.0) & (report.temperature == 1.0) & (report.prior_std == 1.0)
    if not plain.any() or not np.isfinite(score[plain.argmax()]):
        return report
    target_only = int(plain.argmax())
    gain, gain_error = _over_tasks(choice.scores - choice.scores[target_only])
    given = np.array([not candidate.from_scores for candidate in candidates])
    report = dataclasses.replace(report, gain=gain, gain_standard_error=gain_error)
    gains = _source_gains(choice.scores, choice.scores, target_only, report, given)
    if gains is None:
        return report
    plain = None
    if choice.densities is not None:
        found = _source_gains(choice.scores, choice.densities, target_only, report, given)
        plain = found if found is not None and np.isfinite(found).all() else None
    return dataclasses.replace(
        report,
        source_gain=mean_and_standard_error(gains),
        plain_gain=None if plain is None else mean_and_standard_error(plain),
        certificate=certify(gains),
    )


def _scales(settings: Any) -> tuple[float, float]:
    """Return the temperature and the scale of the hyper-prior that settings have; one for settings without them."""
    prior_std = getattr(settings, "prior_std", {"weights": 1.0})
    return float(getattr(settings, "temperature_factor", 1.0)), float(prior_std["weights"])


def _source_gains(
    scores: np.ndarray, values: np.ndarray, target_only: int, report: TransferReport, given: np.ndarray
) -> np.ndarray | None:
    """Return the gain in `values` of candidates with a source over target-only in every task.

    Candidates are weighted much as in predictions (equally if all are dropped), but for each task by the scores of the
    other tasks: a task must not judge weights it has set. For the same reason only `given` candidates count, not those
    made from the scores of others. Nor do candidates at another temperature or hyper-prior than target-only's, whose
    gain is not due to the source.
    """
    plain = (report.temperature == 1.0) & (report.prior_std == 1.0)
    comparable = given & plain & (report.alpha > 0.0) & np.isfinite(scores).all(axis=1)
    if not comparable.any():
        return None
    gains, n_tasks = values[comparable] - values[target_only], scores.shape[1]
    by_group = []
    for group in np.array_split(np.arange(n_tasks), min(n_tasks, MAX_GROUPS)):
        others = np.delete(scores, group, axis=1)
        weights = select_weights(averaging_weights(others), others, target_only)[comparable]
        weights = weights / weights.sum() if weights.any() else np.full(len(weights), 1.0 / len(weights))
        by_group.append(weights @ gains[:, group])
    return np.concatenate(by_group)


def _over_tasks(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means over tasks and their standard errors; minus infinity and NaN for candidates that diverged."""
    finite = np.isfinite(scores).all(axis=1)
    means, errors = np.full(len(scores), -np.inf), np.full(len(scores), np.nan)
    pairs = [mean_and_standard_error(row) for row in scores[finite]]
    means[finite], errors[finite] = np.array(pairs).T if pairs else ([], [])
    return means, errors


def _with_errors(values: np.ndarray, errors: np.ndarray | None, sign: str = "") -> list[str]:
    errors = np.full(len(values), np.nan) if errors is None else errors
    pairs = zip(values.tolist(), errors.tolist(), strict=True)
    return [f"{value:{sign}.3f} ± {error:.3f}" if np.isfinite(value) else "diverged" for value, error in pairs]
