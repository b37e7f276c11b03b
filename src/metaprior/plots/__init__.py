"""Plots of fitted priors and of results. Functions of an estimator return the matplotlib axes they drew on.

`axes=None` makes a new figure, outside of pyplot: `plot_training(meta).figure.savefig("loss.pdf")`.
"""

from metaprior.plots.classes import plot_confusion
from metaprior.plots.diagnostics import plot_alpha_path, plot_calibration, plot_training
from metaprior.plots.predictions import plot_prediction, plot_prior_samples
from metaprior.plots.style import BAND, LINE, POINTS, TRUTH, plot_candidates, plot_posterior

__all__ = [
    "BAND",
    "LINE",
    "POINTS",
    "TRUTH",
    "plot_alpha_path",
    "plot_calibration",
    "plot_candidates",
    "plot_confusion",
    "plot_posterior",
    "plot_prediction",
    "plot_prior_samples",
    "plot_training",
]
