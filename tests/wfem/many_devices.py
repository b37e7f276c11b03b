"""Run by test_devices.py, in a process of its own that has several devices."""

from functools import partial

import jax
import numpy as np

from metaprior.wfem import SVGD, Gaussian, Laplace, MLPKernel, Training, WFEMClassifier, WFEMRegressor

BASE = {"mean": "constant", "kernel": "rbf", "temperature": "bayes", "random_state": 0}


def make_tasks(n_tasks, seed, largest=6):
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-2, 2, (rng.integers(2, largest + 1), 1)) for _ in range(n_tasks)]
    return [(x, np.sin(x[:, 0] + rng.normal())) for x in inputs]


def make_labels(n_tasks, seed):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n_tasks, 6, 2))
    return [(x, np.where(np.arange(6) < 3, "a", "b")) for x in inputs]


def training(n_steps, n_devices, **more):
    return Training(n_steps, dtype="float64", n_devices=n_devices, progress=False, **more)


def fit(n_devices=None, tasks=None, batch_size=None, **settings):
    source, target = tasks or (make_tasks(11, 0), make_tasks(3, 1))
    how = training(20, n_devices, batch_size=batch_size)
    meta = WFEMRegressor(**{**BASE, "alpha": 0.3, "likelihood": Gaussian(0.1), **settings}, training=how)
    return meta.fit(source, target)


def difference(one, other):
    pairs = zip(jax.tree.leaves(one.particles_), jax.tree.leaves(other.particles_), strict=True)
    traces = np.abs(one.loss_trace_ - other.loss_trace_).max()
    return max(traces, *(np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in pairs))


def fit_labels(n_devices=None):
    return WFEMClassifier(**BASE, training=training(5, n_devices)).fit(make_labels(3, 0), make_labels(2, 1))


def fit_large(n_devices=None):
    """Three particles: a number with which eight has nothing in common."""
    large = make_tasks(3, 2, largest=24), make_tasks(2, 3, largest=24)
    return fit(n_devices, tasks=large, inference=SVGD(3))


FITS = {
    "mini-batches": partial(fit, batch_size=5),
    "particles and tasks": partial(fit, inference=SVGD(4), kernel=MLPKernel((4,), n_features=2)),
    "runs": partial(fit, alpha=[0.0, 0.5], inference=Laplace(4)),
    "large tasks": fit_large,
    "labels": fit_labels,
}


if __name__ == "__main__":
    print("n_devices", jax.device_count())
    for name, fit_on in FITS.items():
        print(f"{name}: {difference(fit_on(1), fit_on()):.1e}", flush=True)
