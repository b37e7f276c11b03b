"""The tidy table of results: one row per draw, setting, scheme and metric."""

from typing import Any

FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "regime")

GP = "GP"  # the prior at its initial theta, not meta-trained
FEW = "PACOH, (1-beta)N target tasks"
POOLED = "PACOH, pooled tasks"
WFEM = "WFEM"
AUTO = "WFEM, alpha chosen"
ALL = "PACOH, N target tasks"
ORACLE_GP = "oracle: true GP prior"
ORACLE_BAYES = "oracle: Bayes-optimal"
SCHEMES = (GP, FEW, POOLED, WFEM, AUTO, ALL, ORACLE_GP, ORACLE_BAYES)

PIXEL, FEATURE, DEFAULT, GENERATED = "pixels", "features", "features, default prior", "generated images"

COLUMNS: dict[str, Any] = {
    "figure": "string",
    "data": "string",  # 'sinusoid' or one of the above
    "inference": "string",  # 'map' or 'svgd'; 'none' for oracles
    "deviation": "float64",  # mu'_c - mu_c; NaN if the data have none
    "beta": "float64",  # share of source tasks
    "n_target": "int64",  # (1 - beta) N, the number of target tasks
    "prior_std": "float64",  # sigma_P
    "alpha": "float64",  # weight of the source of WFEM; NaN for schemes without one
    "x": "float64",  # input of a curve in figure 2, else NaN
    "draw": "int64",
    "scheme": "string",
    "metric": "string",
    "value": "float64",
}
REGRESSION_METRICS = ("rmse", "nll", "calibration_error", "coverage")
LABEL_METRICS = ("accuracy", "probability_accuracy", "log_loss", "calibration_error")
CURVES = ("mean", "lower", "upper", "truth", "context")  # of figure 2, at x
