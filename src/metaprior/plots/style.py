"""What all plots share: colors, a figure where none was brought, and the look of axes."""

import io
from typing import Any

import numpy as np

DPI = 120  # of pictures in files
BAND, LINE, TRUTH, POINTS = "#9ecae1", "#08519c", "#333333", "#d94801"
DOTS = {"linestyle": "", "marker": "o", "markersize": 6, "color": POINTS, "markeredgecolor": "white", "zorder": 5}
RINGS = {"linestyle": "", "marker": "o", "markersize": 5, "color": TRUTH, "markerfacecolor": "none", "zorder": 4}
DIAGONAL = {"color": TRUTH, "linewidth": 1.0, "linestyle": "--", "zorder": 1.5}


def resolve_axes(axes: Any, size: tuple[float, float] = (6.4, 4.2)) -> Any:
    """The axes that were brought, or those of a new figure."""
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    if axes is None:
        return Figure(figsize=size, layout="constrained").subplots()
    if not isinstance(axes, Axes):
        raise ValueError(f"axes must be one matplotlib Axes, or None for a new figure; got {type(axes).__name__}.")
    return axes


def tidy(axes: Any, which: str = "both") -> None:
    """A light grid and no box."""
    axes.grid(axis=which, color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(axes: Any, *others: Any, below: bool = False, **options: Any) -> None:
    """One legend for the axes and others on top of it; `below` the axes and their label, where data fill them."""
    from matplotlib.transforms import ScaledTranslation

    pairs = [part.get_legend_handles_labels() for part in (axes, *others)]
    handles, labels = ([item for part in column for item in part] for column in zip(*pairs, strict=True))
    if below:
        under = axes.transAxes + ScaledTranslation(0, -34 / 72, axes.figure.dpi_scale_trans)
        options = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": under, **options}
    axes.legend(handles, labels, **{"fontsize": 9, "framealpha": 0.85, "edgecolor": "none", **options})


def note(axes: Any, text: str) -> None:
    """Words in place of a picture."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=10, color=TRUTH)
    axes.tick_params(length=0, labelbottom=False, labelleft=False)
    axes.grid(visible=False)


def marker_sizes(weights: np.ndarray) -> np.ndarray:
    """Diameters of markers in points, the area of what is beyond the smallest in proportion to weight."""
    return 4 + 6 * np.sqrt(weights / weights.max())


def as_bytes(figure: Any, kind: str = "png") -> bytes:
    """A figure as the content of a file; the same whatever version of matplotlib signs it."""
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=DPI, **({"metadata": {"Software": None}} if kind == "png" else {}))
    return content.getvalue()
