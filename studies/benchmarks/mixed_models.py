"""Logistic regression of grouped rows, pooled and with a random intercept of the group."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from metaprior.estimators.comparison import Baseline
from metaprior.tasks.types import Task

PENALTIES = 10.0 ** np.arange(-4.0, 4.0)
NODES, LOG_WEIGHTS = (lambda x, w: (x, np.log(w / w.sum())))(*np.polynomial.hermite_e.hermegauss(64))


class Pooled(NamedTuple):
    """Standardized rows of all training groups."""

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray  # 0, 1, ..., in order
    center: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> "Pooled":
        """Pool the rows of tasks."""
        x, y = np.concatenate([task.x for task in tasks]), np.concatenate([task.y for task in tasks])
        center, scale = x.mean(axis=0), x.std(axis=0)
        scale = np.where(scale > 0.0, scale, 1.0)
        return cls((x - center) / scale, y, np.repeat(np.arange(len(tasks)), [len(t.y) for t in tasks]), center, scale)

    def standardize(self, x: np.ndarray) -> np.ndarray:
        """Return standardized inputs."""
        return (x - self.center) / self.scale

    def tune(self, loss: Callable[[np.ndarray, np.ndarray, float], float]) -> float:
        """Return the penalty with the least loss(kept rows, rows left out, penalty) in folds of groups."""
        folds = list(GroupKFold(min(5, self.group[-1] + 1)).split(self.x, self.y, self.group))
        return min(PENALTIES, key=lambda penalty: sum(loss(kept, left, penalty) for kept, left in folds))


def pooled_regression(tasks: Sequence[Task]) -> Baseline:
    """Fit logistic regression with the penalty that predicts other groups best."""
    rows = Pooled.of(tasks)

    def fit(kept: np.ndarray, penalty: float) -> LogisticRegression:
        return LogisticRegression(C=1.0 / penalty, max_iter=2000).fit(rows.x[kept], rows.y[kept])

    def loss(kept: np.ndarray, left: np.ndarray, penalty: float) -> float:
        signs = 2.0 * rows.y[left] - 1.0
        return -float(log_expit(signs * fit(kept, penalty).decision_function(rows.x[left])).sum())

    model = fit(np.arange(len(rows.y)), rows.tune(loss))
    return lambda x, y, x_query, n_classes: model.predict_proba(rows.standardize(x_query))


def penalized_mixed_model(tasks: Sequence[Task]) -> Baseline:
    """Fit a random intercept and fixed effects whose penalty predicts other groups best, given half of their rows."""
    rows = Pooled.of(tasks)

    def loss(kept: np.ndarray, left: np.ndarray, penalty: float) -> float:
        effects = fit_intercepts(rows.x[kept], rows.y[kept], rows.group[kept], penalty)
        total = 0.0
        for group in np.unique(rows.group[left]):
            own = left[rows.group[left] == group]  # in random order
            context, query = np.split(own, [len(own) // 2])
            p = effects.predict(rows.x[context], rows.y[context], rows.x[query])
            total -= float(np.log(p[np.arange(len(query)), rows.y[query].astype(int)]).sum())
        return total

    effects = fit_intercepts(rows.x, rows.y, rows.group, rows.tune(loss))
    return lambda x, y, x_query, n_classes: effects.predict(rows.standardize(x), y, rows.standardize(x_query))


def mixed_model(tasks: Sequence[Task]) -> Baseline:
    """Fit GPBoost's logistic model with a random intercept of the group, by maximum likelihood."""
    gpboost: Any = import_module("gpboost")
    rows = Pooled.of(tasks)
    model = gpboost.GPModel(group_data=rows.group, likelihood="bernoulli_logit", num_parallel_threads=1)
    used = independent_columns(rows.x)
    model.fit(y=rows.y, X=np.column_stack([np.ones(len(rows.x)), rows.x[:, used]]))
    coefficients = np.zeros(rows.x.shape[1])
    found = np.ravel(model.get_coef())[: len(used) + 1]
    coefficients[used] = found[1:]
    effects = Effects(found[0], coefficients, float(np.ravel(model.get_cov_pars())[0]))
    return lambda x, y, x_query, n_classes: effects.predict(rows.standardize(x), y, rows.standardize(x_query))


def independent_columns(x: np.ndarray) -> np.ndarray:
    """Return columns that are linearly independent of each other and of a constant."""
    _, r, order = linalg.qr(x - x.mean(axis=0), mode="economic", pivoting=True)
    size = np.abs(np.diag(r))
    return np.sort(order[: int(np.sum(size > 1e-8 * size[0]))])


class Effects(NamedTuple):
    """A logistic model with a random intercept."""

    intercept: float
    coefficients: np.ndarray
    variance: float

    def predict(self, x: np.ndarray, y: np.ndarray, x_query: np.ndarray) -> np.ndarray:
        """Return class probabilities at queries of a group given its context, by quadrature over its intercept."""
        offset = self.intercept + np.sqrt(self.variance) * NODES[:, None]
        log_posterior = LOG_WEIGHTS + log_expit((2.0 * y - 1.0) * (x @ self.coefficients + offset)).sum(axis=1)
        log_posterior -= logsumexp(log_posterior)
        logits = x_query @ self.coefficients + offset
        return np.exp(np.column_stack([logsumexp(log_posterior[:, None] + log_expit(s * logits), 0) for s in (-1, 1)]))


def fit_intercepts(x: np.ndarray, y: np.ndarray, group: np.ndarray, penalty: float) -> Effects:
    """Maximize the marginal likelihood, by quadrature, less penalty |coefficients|^2 / 2."""
    starts, signs = np.flatnonzero(np.diff(group, prepend=-1)), 2.0 * y - 1.0

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        intercept, std, coefficients = theta[0], np.exp(theta[1]), theta[2:]
        logits = x @ coefficients + intercept + std * NODES[:, None]
        joint = LOG_WEIGHTS[:, None] + np.add.reduceat(log_expit(signs * logits), starts, axis=1)
        evidence = logsumexp(joint, axis=0)
        posterior = np.repeat(np.exp(joint - evidence), np.diff([*starts, len(y)]), axis=1)
        slopes = posterior * signs * expit(-signs * logits)
        by_row = slopes.sum(axis=0)
        by_std = std * float((slopes * NODES[:, None]).sum())
        gradient = np.concatenate([[by_row.sum(), by_std - theta[1]], x.T @ by_row - penalty * coefficients])
        value = float(evidence.sum()) - 0.5 * penalty * float(coefficients @ coefficients) - 0.5 * theta[1] ** 2
        return -value, -gradient

    theta = minimize(objective, np.zeros(2 + x.shape[1]), jac=True, method="L-BFGS-B").x
    return Effects(float(theta[0]), theta[2:], float(np.exp(2.0 * theta[1])))


PEERS = {
    "pooled logistic regression": pooled_regression,
    "mixed model, GPBoost": mixed_model,
    "mixed model, penalized": penalized_mixed_model,
}
