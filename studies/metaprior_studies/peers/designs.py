"""Columns of fixed effects for mixed models: linear or spline in the inputs, with or without an environment effect."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import qr
from sklearn.preprocessing import SplineTransformer

Array = np.ndarray

CONTINUOUS = 5  # an input with fewer values enters as it is
KNOTS = {"linear": 0, "spline": 4, "fine spline": 7}
ENVIRONMENTS = ("pooled", "shift", "shift and slope")  # effects of the environment
DEPENDENT = 1e-8  # relative size of a column that others explain


@dataclass(frozen=True)
class Design:
    """Fixed effects of standardized inputs: an intercept, a curve in every input, and an environment effect."""

    splines: tuple[tuple[int, Any], ...]  # input and its fitted transformer
    plain: tuple[int, ...]  # inputs that enter linearly
    environment: str
    kept: Array  # columns that are linearly independent in the training rows

    @classmethod
    def fit(cls, x: Array, in_target: Array, curve: str = "linear", environment: str = "pooled") -> "Design":
        """Place knots at quantiles of the different values of each input, and drop dependent columns."""
        splines, plain = [], []
        for column in range(x.shape[1]):
            values = np.unique(x[:, column])
            n_knots = min(KNOTS[curve], len(values) // 2)
            if n_knots < 3 or len(values) < CONTINUOUS:
                plain.append(column)
                continue
            knots: Any = np.quantile(values, np.linspace(0, 1, n_knots))[:, None]
            transformer = SplineTransformer(knots=knots, degree=3, include_bias=False, extrapolation="linear")
            splines.append((column, transformer.fit(x[:, [column]])))
        every = cls(tuple(splines), tuple(plain), environment, np.array([]))._all(x, in_target)
        return cls(tuple(splines), tuple(plain), environment, _independent(every))

    def __call__(self, x: Array, in_target: Array | float = 1.0) -> Array:
        """Return the columns for inputs, by default of the target environment."""
        return self._all(x, np.broadcast_to(np.asarray(in_target, float), len(x)))[:, self.kept]

    def _all(self, x: Array, in_target: Array) -> Array:
        parts = [np.ones((len(x), 1)), x[:, list(self.plain)]]
        parts += [transformer.transform(x[:, [column]]) for column, transformer in self.splines]
        if self.environment != "pooled":
            parts.append(in_target[:, None])
        if self.environment == "shift and slope":
            parts.append(in_target[:, None] * x)
        return np.concatenate(parts, axis=1)


def _independent(columns: Array) -> Array:
    """Return the places of linearly independent columns, in order."""
    decomposed: Any = qr(columns, mode="economic", pivoting=True)
    _, triangle, order = decomposed
    size = np.abs(np.diag(triangle))
    return np.sort(order[: len(size)][size > DEPENDENT * size[0]])
