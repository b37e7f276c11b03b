"""Results on real environments: a table, and sentences that answer the main questions."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from rich.text import Text

from metaprior.checks import counted
from metaprior.files import nan_to_none
from metaprior.metrics import mean_and_standard_error
from metaprior_studies.real.real_study import DEFAULT, GP, MANY, PER_TASK, POOLED, TARGET_ONLY
from metaprior_studies.reproduction.comparisons import (
    HOLDS,
    MIN_DRAWS,
    UNDECIDED,
    Comparison,
    below,
    difference,
    every,
    inside,
    measure,
    values,
)

COMPARED = {"rmse": "RMSE", "nll": "NLL"}
LEAST_COVERAGE, MOST_COVERAGE = 0.85, 0.95  # of 90% intervals
COLUMNS = ("scheme", "RMSE", Text("minus\ntarget-only"), "NLL", Text("calib.\nerror"), "coverage")


@dataclass(frozen=True)
class SchemeScores:
    """Means of a scheme over draws that did not diverge, with standard errors (NaN for a single draw)."""

    scheme: str
    n_draws: int
    rmse: float
    rmse_se: float
    minus_target_only: float  # of RMSE, paired by draw
    minus_target_only_se: float
    nll: float
    nll_se: float
    calibration_error: float
    coverage: float


@dataclass(frozen=True)
class Findings:
    """Comparisons over draws: WFEM with target-only and pooled, the default with scikit-learn, and coverage."""

    n_draws: int
    transfer: dict[str, list[Comparison]]  # by scheme of WFEM
    per_task: list[Comparison]
    coverage: Comparison
    n_left_out: int = 0  # largest number of draws that a comparison leaves out because a fit diverged

    def winners(self, metric: str) -> list[str]:
        """Return the schemes of WFEM that are better than both target-only and pooled in a metric."""
        return [
            scheme
            for scheme, comparisons in self.transfer.items()
            if every(each.verdict for each in comparisons if each.where == metric) == HOLDS
        ]


def list_schemes(table: pd.DataFrame) -> list[str]:
    """Return the schemes of a table, baselines first and the default last."""
    found = [str(scheme) for scheme in dict.fromkeys(table["scheme"])]
    baselines = [scheme for scheme in (PER_TASK, GP, TARGET_ONLY, POOLED) if scheme in found]
    last = [scheme for scheme in (DEFAULT, MANY) if scheme in found]
    return [*baselines, *(scheme for scheme in found if scheme not in (*baselines, *last)), *last]


def scheme_scores(table: pd.DataFrame) -> list[SchemeScores]:
    """Return the scores of every scheme, baselines first."""
    return [_scores_of(table, scheme) for scheme in list_schemes(table)]


def find(table: pd.DataFrame) -> Findings:
    """Compute all comparisons that `words` describes."""
    transfer = {
        scheme: [
            difference(metric, f"{scheme} − {other}", below(0.0), *_pair(table, scheme, other, metric))
            for metric in COMPARED
            for other in (TARGET_ONLY, POOLED)
        ]
        for scheme in list_schemes(table)
        if scheme.startswith("WFEM")
    }
    per_task = [
        difference(metric, f"{DEFAULT} − {PER_TASK}", below(0.0), *_pair(table, DEFAULT, PER_TASK, metric))
        for metric in COMPARED
    ]
    covered = values(table, DEFAULT, "coverage")
    coverage = measure("coverage", DEFAULT, np.mean, inside(LEAST_COVERAGE, MOST_COVERAGE), covered)
    every_one = [coverage, *per_task, *(each for comparisons in transfer.values() for each in comparisons)]
    n_left_out = len(set(table["draw"])) - min(each.n_draws for each in every_one)
    return Findings(coverage.n_draws, transfer, per_task, coverage, n_left_out)


def words(findings: Findings) -> str:
    """Describe the findings in sentences."""
    if findings.n_draws < MIN_DRAWS:
        return f"{counted(findings.n_draws, 'draw')}: too few for intervals, which need {MIN_DRAWS}. No conclusions."
    transfer = "; ".join(f"in {label}, {_listed(findings.winners(metric))}" for metric, label in COMPARED.items())
    per_task = "; ".join(f"{COMPARED[each.where]} {_text(each)}, {_beats(each)}" for each in findings.per_task)
    cover = findings.coverage
    within = {HOLDS: "yes", UNDECIDED: "undecided"}.get(str(cover.verdict), "no")
    return (
        f"{findings.n_draws} paired draws, 95% bootstrap intervals without correction for multiple comparisons. "
        f"Better than both target-only and pooled: {transfer}. "
        f"Default minus scikit-learn's GP: {per_task}. "
        f"Coverage of the default's 90% intervals is between {LEAST_COVERAGE:.0%} and {MOST_COVERAGE:.0%}: {within} "
        f"({cover.difference:.1%} [{cover.low:.1%}, {cover.high:.1%}])."
        + (f" Up to {findings.n_left_out} draws are left out because a fit diverged." if findings.n_left_out else "")
    )


def table_rows(scores: Sequence[SchemeScores]) -> list[tuple[str, ...]]:
    """Return rows of COLUMNS for a terminal of 100 columns."""
    return [
        (
            each.scheme,
            _with_error(each.rmse, each.rmse_se),
            "" if each.scheme == TARGET_ONLY else _with_error(each.minus_target_only, each.minus_target_only_se),
            _with_error(each.nll, each.nll_se),
            f"{each.calibration_error:.3f}",
            f"{each.coverage:.1%}",
        )
        for each in scores
    ]


def to_json(table: pd.DataFrame) -> dict[str, Any]:
    """Return table, comparisons and words as JSON values; NaN becomes null."""
    findings = find(table)
    content = {
        "schemes": [asdict(each) for each in scheme_scores(table)],
        "comparisons": [
            asdict(each)
            for each in (*(c for row in findings.transfer.values() for c in row), *findings.per_task, findings.coverage)
        ],
        "beat_target_only_and_pooled": {metric: findings.winners(metric) for metric in COMPARED},
        "words": words(findings),
    }
    return nan_to_none(content)


def _scores_of(table: pd.DataFrame, scheme: str) -> SchemeScores:
    rmse, nll = (values(table, scheme, metric) for metric in COMPARED)
    paired = (rmse - values(table, TARGET_ONLY)).dropna()
    return SchemeScores(
        scheme,
        int(rmse.notna().sum()),
        *_mean(rmse),
        *_mean(paired),
        *_mean(nll),
        float(values(table, scheme, "calibration_error").mean()),
        float(values(table, scheme, "coverage").mean()),
    )


def _mean(column: pd.Series) -> tuple[float, float]:
    finite = column.dropna().to_numpy(dtype="float64")
    return mean_and_standard_error(finite) if len(finite) else (math.nan, math.nan)


def _pair(table: pd.DataFrame, first: str, second: str, metric: str) -> tuple[pd.Series, pd.Series]:
    return values(table, first, metric), values(table, second, metric)


def _listed(names: Sequence[str]) -> str:
    shown = [name.removeprefix("WFEM, ") for name in names]
    return (
        "none of WFEM's settings"
        if not shown
        else " and ".join([", ".join(shown[:-1])] * (len(shown) > 1) + shown[-1:])
    )


def _beats(comparison: Comparison) -> str:
    return {HOLDS: "better", UNDECIDED: "undecided"}.get(str(comparison.verdict), "worse")


def _text(comparison: Comparison) -> str:
    return f"{_number(comparison.difference)} [{_number(comparison.low)}, {_number(comparison.high)}]"


def _with_error(mean: float, error: float) -> str:
    return _number(mean) if math.isnan(error) else f"{_number(mean)} ± {_number(error)}"


def _number(value: float) -> str:
    """Format in at most six characters and a sign: '1.234', '−12.34', '1234.5', '1.2e5'."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 9999.5:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits}e{int(power)}".replace("-", "−")
    return f"{value:.{3 if size < 9.9995 else 2 if size < 99.995 else 1}f}".replace("-", "−")
