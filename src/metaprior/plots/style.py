"""What plots share: colors, figures and axes, and results drawn on axes that the caller passes."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior.checks import require_matplotlib
from metaprior.predict.predictive import GaussianMixture, Predictive
from metaprior.terminal import visible

DPI = 120  # of image files
BAND, LINE, TRUTH, POINTS = "#9ecae1", "#08519c", "#333333", "#d94801"
DOTS = {"linestyle": "", "marker": "o", "markersize": 6, "color": POINTS, "markeredgecolor": "white", "zorder": 5}
RINGS = {"linestyle": "", "marker": "o", "markersize": 5, "color": TRUTH, "markerfacecolor": "none", "zorder": 4}
DIAGONAL = {"color": TRUTH, "linewidth": 1.0, "linestyle": "--", "zorder": 1.5}


MARGIN = 0.05  # of the range of the points, on either side


RANGE = 2.5  # standard deviations of the meta-training inputs, on either side of their mean


N_GRID = 201


def grid_over(meta: Any, column: int, *inputs: np.ndarray, n_points: int = N_GRID) -> np.ndarray:
    """Return a grid of an input column that covers all points, or without any the meta-training inputs."""
    points = np.concatenate(inputs)[:, column]
    if not len(points):
        return prior_range(meta, column, n_points)
    low, high = float(points.min()), float(points.max())
    margin = MARGIN * (high - low) or float(meta.model_.members[0].scaling.x_std[column])
    return np.linspace(low - margin, high + margin, n_points)


def prior_range(meta: Any, column: int, n_points: int = N_GRID) -> np.ndarray:
    """Return a grid of an input column that covers most of the meta-training inputs."""
    scaling = meta.model_.members[0].scaling
    middle, spread = float(scaling.x_mean[column]), float(scaling.x_std[column])
    return np.linspace(middle - RANGE * spread, middle + RANGE * spread, n_points)


def plot_posterior(
    axes: Any,
    x: np.ndarray,
    predictive: "GaussianMixture | Predictive",
    x_context: np.ndarray,
    y_context: np.ndarray,
    truth: np.ndarray | None = None,
    coverage: float = 0.9,
    band: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Plot a prediction along one input: mean and central band, the context, and the truth where it is known.

    Parameters
    ----------
    axes : matplotlib Axes
    x : ndarray of shape (n,)
    predictive : GaussianMixture
        At x.
    x_context, y_context : ndarray of shape (n_context,)
    truth : ndarray of shape (n,), optional
    coverage : float, default=0.9
        Probability of the band.
    band : (ndarray, ndarray) of shape (n,), optional
        The ends of another band than the central one.
    """
    lower, upper = predictive.interval(coverage) if band is None else band
    axes.fill_between(x, lower, upper, color=BAND, alpha=0.6, linewidth=0, label=f"{coverage:.0%} band")
    axes.plot(x, predictive.mean(), color=LINE, linewidth=1.8, label="mean")
    if truth is not None:
        axes.plot(x, truth, color=TRUTH, linewidth=1.2, linestyle="--", label="truth")
    if len(x_context):
        axes.plot(x_context, y_context, label="context", **DOTS)
    tidy(axes)


def plot_candidates(
    left: Any,
    right: Any,
    labels: Sequence[str],
    values: np.ndarray | None,
    errors: np.ndarray | None,
    weights: np.ndarray,
) -> None:
    """Plot compared settings: values with standard errors on the left, weights in the average on the right.

    Parameters
    ----------
    left, right : matplotlib Axes
    labels : sequence of str
        Names of the settings.
    values, errors : ndarray of shape (n_settings,), or None
        A setting that is not finite is left out.
    weights : ndarray of shape (n_settings,)
    """
    rows = np.arange(len(labels))
    if values is not None:
        kept = np.isfinite(values)
        left.errorbar(values[kept], rows[kept], xerr=None if errors is None else errors[kept], fmt="none", ecolor=BAND)
        left.scatter(values[kept], rows[kept], s=marker_areas(weights)[kept], color=LINE, zorder=3)
        left.axvline(0.0, color=TRUTH, linewidth=1.0, linestyle="--")
    right.barh(rows, weights, color=POINTS, height=0.6)
    right.set_xlabel("weight")
    left.set_yticks(rows, list(map(as_drawn, labels)))
    left.invert_yaxis()
    for axes in (left, right):
        tidy(axes, "x")


def resolve_axes(axes: Any, size: tuple[float, float] = (6.4, 4.2)) -> Any:
    """Return the given axes, or those of a new figure."""
    require_matplotlib()
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    if axes is None:
        return Figure(figsize=size, layout="constrained").subplots()
    if not isinstance(axes, Axes):
        raise ValueError(f"axes must be one matplotlib Axes, or None for a new figure; got {type(axes).__name__}.")
    return axes


def tidy(axes: Any, which: str = "both") -> None:
    """Draw a light grid and no box."""
    axes.grid(axis=which, color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(axes: Any, *others: Any, below: bool = False, **options: Any) -> None:
    """Draw one legend for axes and others on top of them; `below` the axes where data fill them."""
    from matplotlib.transforms import ScaledTranslation

    pairs = [part.get_legend_handles_labels() for part in (axes, *others)]
    handles, labels = ([item for part in column for item in part] for column in zip(*pairs, strict=True))
    if below:
        under = axes.transAxes + ScaledTranslation(0, -34 / 72, axes.figure.dpi_scale_trans)
        options = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": under, **options}
    axes.legend(handles, labels, **{"fontsize": 9, "framealpha": 0.85, "edgecolor": "none", **options})


def as_drawn(name: Any) -> str:
    """Return a name as matplotlib draws it letter by letter: $ begins no formula, and _ hides no entry of a legend."""
    text = visible(str(name)).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def note(axes: Any, text: str) -> None:
    """Write text where there is nothing to plot."""
    axes.text(0.5, 0.5, as_drawn(text), transform=axes.transAxes, ha="center", va="center", fontsize=10, color=TRUTH)
    axes.tick_params(length=0, labelbottom=False, labelleft=False)
    axes.grid(visible=False)


def marker_areas(weights: np.ndarray) -> np.ndarray:
    """Return areas of markers, a smallest one plus an area that grows with the weight."""
    return (4 + 6 * np.sqrt(weights / weights.max())) ** 2


def as_bytes(figure: Any, kind: str = "png") -> bytes:
    """Return a figure as the content of a file, without the version of matplotlib."""
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=DPI, **({"metadata": {"Software": None}} if kind == "png" else {}))
    return content.getvalue()
