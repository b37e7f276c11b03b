"""The picture of a real environment: paired differences of every scheme from target-only."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from metaprior.plots.style import as_bytes
from metaprior_studies.paired_rows import color_of, describe, draw_rows, explain_colors, find_limits, interval_of
from metaprior_studies.real.real_results import COMPARED, list_schemes
from metaprior_studies.real.real_study import GP, PER_TASK, TARGET_ONLY
from metaprior_studies.reproduction.comparisons import below, difference, values

UNITS = {  # of y, which are those of RMSE
    "colorado": "°C",
    "physionet-gcs": "points of the scale",
    "physionet-hct": "% hematocrit",
    "ujiindoorloc": "dBm",
    "intel-berkeley": "°C",
}


def draw_picture(name: str, table: pd.DataFrame) -> bytes:
    """Plot RMSE and NLL of every scheme minus those of target-only, with 95% intervals over draws, as PNG.

    The axes fit the schemes that learn from other tasks. The two that do not may be far outside: then they are arrows.
    """
    schemes = [scheme for scheme in list_schemes(table) if scheme != TARGET_ONLY]
    learned = np.array([scheme not in (PER_TASK, GP) for scheme in schemes])
    units = {"rmse": UNITS.get(name, "units of y"), "nll": "nats per reading"}
    figure = Figure(figsize=(10, 1.3 + 0.36 * len(schemes)), layout="constrained")
    places = np.arange(len(schemes), dtype=float)
    for axes, (metric, label) in zip(figure.subplots(1, 2, sharey=True), COMPARED.items(), strict=True):
        reference = values(table, TARGET_ONLY, metric)
        found = [difference(metric, each, below(0.0), values(table, each, metric), reference) for each in schemes]
        rows = np.array([interval_of(each) for each in found])
        draw_rows(axes, places, rows, [color_of(each) for each in found], find_limits(rows[learned]), form=".2f")
        axes.set_xlabel(f"{label} minus that of target-only ({units[metric]})")
    figure.axes[0].set_yticks(places, schemes)
    figure.axes[0].invert_yaxis()
    figure.suptitle(f"{name}: {describe(len(set(table['draw'])))}", fontsize=11)
    explain_colors(figure, "lower than target-only: better", "higher: worse")
    return as_bytes(figure)
