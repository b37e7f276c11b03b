"""Inputs arranged in unfortunate ways."""

import numpy as np


def arrange(rng, x, arrangement):
    """Return inputs that repeat, nearly repeat, lie on a line, at one point or in clusters, or as they are."""
    n = len(x)
    if arrangement in ("twice", "nearly twice"):
        x[n // 2 :] = x[: n - n // 2] + (arrangement == "nearly twice") * 1e-9 * rng.normal(size=(n - n // 2, 2))
    if arrangement == "collinear":
        x[:, 1] = 2.0 * x[:, 0]
    if arrangement == "one point":
        x[:] = x[:1]
    return np.round(x) + 1e-6 * rng.normal(size=x.shape) if arrangement == "clusters" else x
