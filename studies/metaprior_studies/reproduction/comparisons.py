"""Schemes compared draw by draw: paired differences with bootstrap intervals, and what follows from an interval."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from metaprior_studies.schema import WFEM

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "inconclusive"
MIN_DRAWS = 10  # percentile intervals of fewer are too short: of five, one in six misses a difference of zero
LEVEL, RESAMPLES, SPLITS, SEED = 0.95, 4000, 100, 0
SAME = 1e-9  # settings that differ by rounding are the same

Judge = Callable[[float, float], str]  # from the ends of an interval to a verdict
Table = Any  # a data frame too: pandas annotates every selection from one as perhaps a series


@dataclass(frozen=True)
class Comparison:
    """A number with its interval: where and what it is, and its verdict, or None where it only informs."""

    where: str
    what: str
    difference: float
    low: float
    high: float
    n_draws: int
    verdict: str | None


def every(verdicts: Iterable[str | None]) -> str:
    """Does not hold if one verdict is that, holds if there are some and all do, else inconclusive."""
    found = set(verdicts) - {None}
    return FAILS if FAILS in found else HOLDS if found == {HOLDS} else UNDECIDED


def below(limit: float) -> Judge:
    """Holds where the interval is entirely below the limit."""
    return lambda low, high: HOLDS if high < limit else FAILS if low > limit else UNDECIDED


def above(limit: float) -> Judge:
    """Holds where the interval is entirely above the limit."""
    return lambda low, high: HOLDS if low > limit else FAILS if high < limit else UNDECIDED


def inside(least: float, most: float) -> Judge:
    """Holds where the interval is entirely inside the range; does not hold where it misses the range."""
    least, most = least - SAME, most + SAME
    return lambda low, high: (
        HOLDS if least <= low and high <= most else FAILS if high < least or low > most else UNDECIDED
    )


def values(frame: pd.DataFrame, scheme: str, metric: str = "rmse", **setting: Any) -> pd.Series:
    """The values of a scheme by draw in one setting, NaN where the run diverged."""
    chosen = select(frame, scheme, metric, **setting).set_index("draw")["value"].sort_index()
    if not chosen.index.is_unique:
        raise ValueError(f"expected one {metric} per draw of {scheme} at {setting or 'its setting'}, got several")
    return chosen.where(np.isfinite(chosen))


def by_alpha(frame: pd.DataFrame, metric: str = "rmse", **setting: Any) -> Table:
    """The values of WFEM in one setting: a row per draw, a column per alpha."""
    chosen = select(frame, WFEM, metric, **setting)
    alphas = chosen["alpha"].round(9).unique()
    columns = {alpha: values(chosen, WFEM, metric, alpha=float(alpha)) for alpha in np.sort(alphas)}
    return pd.DataFrame(columns, dtype="float64")


def measure(
    where: str, what: str, statistic: Callable[..., Any], rule: Judge | None, *samples: pd.Series
) -> Comparison:
    """A statistic of samples paired by draw, its bootstrap interval over draws, and the rule's verdict on that."""
    columns = pd.concat(samples, axis=1, join="inner").dropna().sort_index().to_numpy(dtype="float64").T
    n_draws = columns.shape[1]
    estimate = float(statistic(*columns, axis=-1)) if n_draws else math.nan
    low, high = interval(statistic, columns) if n_draws >= MIN_DRAWS else (math.nan, math.nan)
    return Comparison(where, what, estimate, low, high, n_draws, None if rule is None else rule(low, high))


def difference(where: str, what: str, rule: Judge | None, first: pd.Series, second: pd.Series) -> Comparison:
    """The mean paired difference."""
    # The differences are resampled, not the pairs: what both schemes share cancels to the last digit.
    return measure(where, what, np.mean, rule, first - second)


def interval(statistic: Callable[..., Any], columns: np.ndarray) -> tuple[float, float]:
    """The percentile bootstrap interval of a statistic of paired columns."""
    if (columns == columns[:, :1]).all():
        value = float(statistic(*columns, axis=-1))
        return value, value
    seeded: dict[str, Any] = {"random_state": np.random.default_rng(SEED)}  # scipy 1.14 does not know rng
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
    """By how much the first mean is above the second, relative to that."""
    return np.mean(first, axis=axis) / np.mean(second, axis=axis) - 1.0


def one_hot(means: np.ndarray, index: Any) -> np.ndarray:
    """One at the index, zero elsewhere."""
    return np.eye(len(means))[index]


def held_out(table: Table, choose: Callable[[np.ndarray], np.ndarray]) -> pd.Series:
    """For every draw the sum of its row weighted by `choose`, which saw the column means of the other half alone.

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
    """Rows of one scheme and metric in one setting."""
    kept = (frame["scheme"] == scheme) & (frame["metric"] == metric)
    for column, wanted in setting.items():
        kept &= (frame[column] - wanted).abs() < SAME if isinstance(wanted, float) else frame[column] == wanted
    return frame[kept]


def levels(frame: Table, column: str, scheme: str = WFEM) -> list[float]:
    """The values of a column, of one scheme: an oracle stands at a single level of what it does not depend on."""
    return [float(level) for level in np.sort(frame.loc[frame["scheme"] == scheme, column].round(9).unique())]


def pairs(frame: Table) -> list[tuple[str, str]]:
    """Data and inference of figure 4."""
    found = frame.loc[frame["inference"] != "none", ["data", "inference"]].drop_duplicates()
    return [(str(data), str(inference)) for data, inference in found.itertuples(index=False)]


def signed(value: float) -> str:
    """'−0.031': three decimals, or an exponent where these would say nothing; '–' where there is no number."""
    plain = value == 0.0 or 0.001 <= abs(value) < 1000.0
    return "–" if math.isnan(value) else (f"{value:+.3f}" if plain else f"{value:+.1e}").replace("-", "−")
