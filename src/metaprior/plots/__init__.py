"""Plots of fitted priors and of results, one function each. They return the matplotlib axes they drew on.

`axes=None` makes a figure of its own, which pyplot knows nothing of: `plot_training(meta).figure.savefig("loss.pdf")`.
"""

from metaprior.plots.calibration import plot_calibration
from metaprior.plots.candidates import plot_candidates, plot_posterior
from metaprior.plots.predictions import plot_prediction, plot_prior_samples
from metaprior.plots.style import BAND, LINE, POINTS, TRUTH
from metaprior.plots.traces import plot_alpha_path, plot_training

__all__ = [
    "BAND",
    "LINE",
    "POINTS",
    "TRUTH",
    "plot_alpha_path",
    "plot_calibration",
    "plot_candidates",
    "plot_posterior",
    "plot_prediction",
    "plot_prior_samples",
    "plot_training",
]
