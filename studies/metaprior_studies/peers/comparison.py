"""Tables of the comparison: scores of every contestant, and paired differences of one of them from the others."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from metaprior.metrics import mean_and_standard_error
from metaprior_studies.peers.contestants import CONTESTANTS, LABELS
from metaprior_studies.peers.tables import ENVIRONMENTS
from metaprior_studies.reproduction.comparisons import measure

Frame = Any  # a pandas data frame: the stubs of pandas say that every selection may be something else
ALL = "all environments"
BETTER, WORSE, EVEN = "better", "worse", "even"
UNKNOWN = ""  # too few draws for an interval


class Difference(NamedTuple):
    """A contestant against another: RMSE as a ratio, NLL as a difference, with 95% intervals over draws."""

    ratio: float
    ratio_low: float
    ratio_high: float
    nll: float
    nll_low: float
    nll_high: float
    n_draws: int

    def verdicts(self) -> tuple[str, str]:
        """Return whether RMSE and NLL are better, worse or even."""
        return _verdict(self.ratio_low - 1, self.ratio_high - 1), _verdict(self.nll_low, self.nll_high)


def load(path: Any) -> Frame:
    """Read results; environments and contestants come in the order of their lists."""
    frame: Frame = pd.read_csv(path)
    orders = {"data": list(ENVIRONMENTS), "contestant": list(CONTESTANTS)}
    for column, order in orders.items():
        frame[column] = pd.Categorical(frame[column], [name for name in order if name in set(frame[column])])
    return frame.sort_values(["data", "contestant", "draw"]).reset_index(drop=True)


def found(frame: Frame, column: str) -> list[str]:
    """Return the environments or contestants of a table, in order."""
    return [str(name) for name in frame[column].cat.categories]


def by_draw(frame: Frame, data: str, contestant: str, metric: str) -> pd.Series:
    """Return the values of a contestant in an environment, by draw."""
    kept = (frame["data"] == data) & (frame["contestant"] == contestant)
    return frame[kept].set_index("draw")[metric].sort_index().astype(float)


def compare(frame: Frame, data: str, first: str, second: str) -> Difference:
    """Compare two contestants in an environment, or in ALL: then a draw counts as its mean over environments."""
    names = found(frame, "data") if data == ALL else [data]
    ratios = [_log(frame, name, first) - _log(frame, name, second) for name in names]
    nlls = [by_draw(frame, name, first, "nll") - by_draw(frame, name, second, "nll") for name in names]
    ratio, nll = (pd.concat(each, axis=1, join="inner").dropna().mean(axis=1) for each in (ratios, nlls))
    of_ratio, of_nll = (measure(data, first, np.mean, None, each) for each in (ratio, nll))
    ratio, low, high = (math.exp(each) for each in (of_ratio.difference, of_ratio.low, of_ratio.high))
    return Difference(ratio, low, high, of_nll.difference, of_nll.low, of_nll.high, of_nll.n_draws)


def others(frame: Frame, reference: str) -> list[str]:
    """Return all contestants but one."""
    if reference not in found(frame, "contestant"):
        raise ValueError(f"no results of {reference}; there are {', '.join(found(frame, 'contestant'))}.")
    return [name for name in found(frame, "contestant") if name != reference]


def score_rows(frame: Frame, data: str) -> Iterator[tuple[str, ...]]:
    """Yield a row per contestant: mean ± standard error of RMSE and NLL, coverage, width and seconds."""
    for contestant in found(frame, "contestant"):
        columns = {
            metric: by_draw(frame, data, contestant, metric).dropna()
            for metric in ("rmse", "nll", "coverage", "width", "seconds")
        }
        if len(columns["rmse"]):
            yield (
                LABELS.get(contestant, contestant),
                with_error(columns["rmse"]),
                with_error(columns["nll"]),
                f"{columns['coverage'].mean():.1%}",
                f"{columns['width'].mean():.3g}",
                f"{columns['seconds'].mean():.1f}",
            )


def best_rows(frame: Frame, reference: str) -> Iterator[tuple[str, ...]]:
    """Yield a row per environment: the reference against the best other contestant in hindsight, in RMSE and in NLL."""
    for data in found(frame, "data"):
        if by_draw(frame, data, reference, "nll").empty:
            continue
        row: list[str] = [data]
        for metric in ("rmse", "nll"):
            means = {name: by_draw(frame, data, name, metric).mean() for name in others(frame, reference)}
            best = min((name for name in means if np.isfinite(means[name])), key=lambda name: means[name])
            difference = compare(frame, data, reference, best)
            text = ratio_text(difference) if metric == "rmse" else nll_text(difference)
            row += [LABELS.get(best, best), f"{text} {difference.verdicts()[metric == 'nll']}"]
        yield tuple(row)


def average_rows(frame: Frame, reference: str) -> Iterator[tuple[str, ...]]:
    """Yield a row per other contestant: averages over environments, and environments where the reference is better."""
    for other in others(frame, reference):
        whole = compare(frame, ALL, reference, other)
        verdicts = [compare(frame, data, reference, other).verdicts() for data in found(frame, "data")]
        counts = [
            " / ".join(str(sum(each[place] == wanted for each in verdicts)) for wanted in (BETTER, EVEN, WORSE))
            for place in (0, 1)
        ]
        yield LABELS.get(other, other), ratio_text(whole), counts[0], nll_text(whole), counts[1]


def coverage_rows(frame: Frame) -> Iterator[tuple[str, ...]]:
    """Yield a row per contestant: mean, lowest and highest coverage over environments, and mean seconds."""
    for contestant in found(frame, "contestant"):
        rows = frame[frame["contestant"] == contestant]
        coverage = rows.groupby("data", observed=True)["coverage"].mean()
        range_text = f"{coverage.min():.1%} to {coverage.max():.1%}"
        miss = float((coverage - 0.9).abs().mean())
        seconds = rows["seconds"].mean()
        yield LABELS.get(contestant, contestant), f"{coverage.mean():.1%}", range_text, f"{miss:.1%}", f"{seconds:.1f}"


def with_error(column: pd.Series) -> str:
    """Return mean ± standard error."""
    mean, error = mean_and_standard_error(column.to_numpy(float))
    return f"{mean:.3f}" if math.isnan(error) else f"{mean:.3f} ± {error:.3f}"


def ratio_text(difference: Difference) -> str:
    """Return a ratio of RMSE with its interval."""
    interval = f" [{difference.ratio_low:.3f}, {difference.ratio_high:.3f}]"
    return f"{difference.ratio:.3f}" + interval * math.isfinite(difference.ratio_low)


def nll_text(difference: Difference) -> str:
    """Return a difference of NLL with its interval."""
    interval = f" [{difference.nll_low:+.3f}, {difference.nll_high:+.3f}]"
    return f"{difference.nll:+.3f}" + interval * math.isfinite(difference.nll_low)


def _log(frame: Frame, data: str, contestant: str) -> pd.Series:
    return np.log(by_draw(frame, data, contestant, "rmse"))  # type: ignore[return-value]


def _verdict(low: float, high: float) -> str:
    return UNKNOWN if math.isnan(low) else BETTER if high < 0 else WORSE if low > 0 else EVEN
