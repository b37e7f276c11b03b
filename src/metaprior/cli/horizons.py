"""How errors of forecasts grow with the horizon: the distance from the last reading that is given."""

from typing import Any

import numpy as np

from metaprior.cli.console import out, print_table

N_BINS = 4


def score_horizons(meta: Any, tests: list[Any]) -> list[dict[str, float]]:
    """Return scores of queries by their distance from the last reading of the context, in bins of equal numbers.

    For readings: root mean square error, and the share inside the 90% interval. For labels: the share predicted.
    """
    from metaprior.predict.ensemble import predicts_labels

    tests = [test for test in tests if len(test.y_context)]
    if not tests:
        return []
    horizons = np.concatenate([test.x_query[:, 0] - test.x_context[:, 0].max() for test in tests])
    adapted, queries = meta.adapt_many([test[:2] for test in tests]), [test.x_query for test in tests]
    y = np.concatenate([test.y_query for test in tests])
    if predicts_labels(meta):
        values = {"accuracy": (np.concatenate(adapted.predict(queries)) == y).astype(float)}
    else:
        lower, upper = (np.concatenate(ends) for ends in adapted.interval(queries))
        squares = (np.concatenate(adapted.predict(queries)) - y) ** 2
        values = {"rmse": squares, "coverage": ((y >= lower) & (y <= upper)).astype(float)}
    edges = np.unique(np.quantile(horizons, np.linspace(0.0, 1.0, N_BINS + 1)))
    bins = np.clip(np.searchsorted(edges, horizons, side="right") - 1, 0, max(len(edges) - 2, 0))
    return [
        _bin(horizons[bins == i], {name: of_all[bins == i] for name, of_all in values.items()}) for i in np.unique(bins)
    ]


def _bin(horizons: np.ndarray, values: dict[str, np.ndarray]) -> dict[str, float]:
    means = {name: float(np.mean(of_bin)) for name, of_bin in values.items()}
    means |= {"rmse": float(np.sqrt(means["rmse"]))} if "rmse" in means else {}
    return {"from": float(horizons.min()), "to": float(horizons.max()), "readings": len(horizons), **means}


def print_horizons(horizons: list[dict[str, float]], x: str, is_date: bool) -> None:
    """Print a row for every bin, if there are any."""
    if not horizons:
        return
    names = [name for name in horizons[0] if name not in ("from", "to")]
    rows = [(f"{each['from']:.3g} to {each['to']:.3g}", *(f"{each[name]:.3g}" for name in names)) for each in horizons]
    unit = "days" if is_date else f"the units of {x}"
    print_table(("horizon", *names), rows)
    out.print(f"horizon: from the last reading of the context, in {unit}.", soft_wrap=True)
