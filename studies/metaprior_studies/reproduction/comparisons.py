"""Compare schemes draw by draw: paired differences, their bootstrap intervals, and verdicts on intervals."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from metaprior_studies.schema import WFEM

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "inconclusive"
MIN_DRAWS = 10  # percentile intervals of fewer draws are too short: with five, one in six misses a difference of zero
LEVEL, RESAMPLES, SPLITS, SEED = 0.95, 4000, 100, 0
SAME = 1e-9  # tolerance for settings that differ by rounding

Judge = Callable[[float, float], str]  # from the ends of an interval to a verdict
Table = Any  # a data frame: the stubs of pandas say that every selection may be a series


@dataclass(frozen=True)
class Comparison:
    """A number with its interval: where and what it measures, and a verdict, None if it is for information only."""

    where: str
    what: str
    difference: float
    low: float
    high: float
    n_draws: int
    verdict: str | None


def every(verdicts: Iterable[str | None]) -> str:
    """Return "does not hold" if one verdict is, "holds" if all are and there is at least one, else "inconclusive"."""
    found = set(verdicts) - {None}
    return FAILS if FAILS in found else HOLDS if found == {HOLDS} else UNDECIDED


def below(limit: float) -> Judge:
    """Return a rule that holds if the interval is entirely below the limit."""
    return lambda low, high: HOLDS if high < limit else FAILS if low > limit else UNDECIDED


def above(limit: float) -> Judge:
    """Return a rule that holds if the interval is entirely above the limit."""
    return lambda low, high: HOLDS if low > limit else FAILS if high < limit else UNDECIDED


def inside(least: float, most: float) -> Judge:
    """Return a rule that holds if the interval is inside the range, and does not hold if it is outside."""
    least, most = least - SAME, most + SAME
    return lambda low, high: (
        HOLDS if least <= low and high <= most else FAILS if high < least or low > most else UNDECIDED
    )


def values(frame: pd.DataFrame, scheme: str, metric: str = "rmse", **setting: Any) -> pd.Series:
    """Return the values of a scheme by draw in one setting; NaN if the run diverged."""
    chosen = select(frame, scheme, metric, **setting).set_index("draw")["value"].sort_index()
    if not chosen.index.is_unique:
        raise ValueError(f"expected one {metric} per draw of {scheme} at {setting or 'its setting'}, got several")
    return chosen.where(np.isfinite(chosen))


def by_alpha(frame: pd.DataFrame, metric: str = "rmse", **setting: Any) -> Table:
    """Return the values of WFEM in one setting: a row per draw, a column per alpha."""
    chosen = select(frame, WFEM, metric, **setting)
    alphas = chosen["alpha"].round(9).unique()
    columns = {alpha: values(chosen, WFEM, metric, alpha=float(alpha)) for alpha in np.sort(alphas)}
    return pd.DataFrame(columns, dtype="float64")


def measure(
    where: str, what: str, statistic: Callable[..., Any], rule: Judge | None, *samples: pd.Series
) -> Comparison:
    """Return a statistic of samples paired by draw, its bootstrap interval over draws, and the rule's verdict."""
    columns = pd.concat(samples, axis=1, join="inner").dropna().sort_index().to_numpy(dtype="float64").T
    n_draws = columns.shape[1]
    estimate = float(statistic(*columns, axis=-1)) if n_draws else math.nan
    low, high = interval(statistic, columns) if n_draws >= MIN_DRAWS else (math.nan, math.nan)
    return Comparison(where, what, estimate, low, high, n_draws, None if rule is None else rule(low, high))


def difference(where: str, what: str, rule: Judge | None, first: pd.Series, second: pd.Series) -> Comparison:
    """Return the mean paired difference with its interval and verdict."""
    # Resample differences, not pairs: what both schemes share then cancels exactly.
    return measure(where, what, np.mean, rule, first - second)


def interval(statistic: Callable[..., Any], columns: np.ndarray) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a statistic of paired columns."""
    if (columns == columns[:, :1]).all():
        value = float(statistic(*columns, axis=-1))
        return value, value
    seeded: dict[str, Any] = {"random_state": np.random.default_rng(SEED)}  # scipy 1.14 has no argument rng
    result = bootstrap(
        tuple(columns),
        statistic,
        paired=True,
        vectorized=True,
        axis=-1,
        method="percentile",
        confidence_level=LEVEL,
        n_resamples=RESAMPLES,
        **seeded,
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def relative(first: np.ndarray, second: np.ndarray, axis: int = -1) -> Any:
    """Return how much the first mean exceeds the second, relative to the second."""
    return np.mean(first, axis=axis) / np.mean(second, axis=axis) - 1.0


def one_hot(means: np.ndarray, index: Any) -> np.ndarray:
    """Return a vector that is one at the index and zero elsewhere."""
    return np.eye(len(means))[index]


def held_out(table: Table, choose: Callable[[np.ndarray], np.ndarray]) -> pd.Series:
    """Return, for every draw, the sum of its row weighted by `choose` of the column means of the other half of draws.

    Halves are drawn many times. Weights are averaged before the sum, so that a choice that never changes is exact.
    """
    rows = table.sort_index().to_numpy(dtype="float64")
    generator = np.random.default_rng(SEED)
    weights = np.zeros_like(rows)
    for _ in range(SPLITS if len(rows) >= MIN_DRAWS else 0):
        order = generator.permutation(len(rows))
        first, second = order[: len(rows) // 2], order[len(rows) // 2 :]
        weights[second] += choose(rows[first].mean(axis=0))
        weights[first] += choose(rows[second].mean(axis=0))
    measured = (rows * (weights / SPLITS)).sum(axis=1)
    return pd.Series(measured if len(rows) >= MIN_DRAWS else math.nan, index=table.sort_index().index, dtype="float64")


def select(frame: Table, scheme: str, metric: str, **setting: Any) -> Table:
    """Return the rows of one scheme and metric in one setting."""
    kept = (frame["scheme"] == scheme) & (frame["metric"] == metric)
    for column, wanted in setting.items():
        kept &= (frame[column] - wanted).abs() < SAME if isinstance(wanted, float) else frame[column] == wanted
    return frame[kept]


def levels(frame: Table, column: str, scheme: str = WFEM) -> list[float]:
    """Return the values of a column for one scheme (an oracle has one value of what it does not depend on)."""
    return [float(level) for level in np.sort(frame.loc[frame["scheme"] == scheme, column].round(9).unique())]


def pairs(frame: Table) -> list[tuple[str, str]]:
    """Return the pairs of data and inference method in figure 4."""
    found = frame.loc[frame["inference"] != "none", ["data", "inference"]].drop_duplicates()
    return [(str(data), str(inference)) for data, inference in found.itertuples(index=False)]


def signed(value: float) -> str:
    """Format as '−0.031': three decimals, or an exponent for very small and large numbers; '–' for NaN."""
    plain = value == 0.0 or 0.001 <= abs(value) < 1000.0
    return "–" if math.isnan(value) else (f"{value:+.3f}" if plain else f"{value:+.1e}").replace("-", "−")
