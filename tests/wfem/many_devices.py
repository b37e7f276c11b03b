"""Run by test_devices.py, in processes of its own: `many_devices.py devices` and `many_devices.py process RANK ...`."""

import os
import sys
from functools import partial

import jax
import numpy as np

from metaprior import MetaGPClassifier, MetaGPRegressor, MLPKernel
from metaprior.wfem import loop

BASE = {"alpha": 0.3, "mean": "constant", "kernel": "rbf", "inference": "map", "noise_std": 0.1, "n_steps": 20}
FIXED = {"dtype": "float64", "random_state": 0, "progress": False}
SVGD = {"inference": "svgd", "n_particles": 4}
SHARED = {**SVGD, "batch_size": 5, "random_state": 3}  # the fit of two processes


def make_tasks(n_tasks, seed, largest=6):
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-2, 2, (rng.integers(2, largest + 1), 1)) for _ in range(n_tasks)]
    return [(x, np.sin(x[:, 0] + rng.normal())) for x in inputs]


def make_labels(n_tasks, seed):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n_tasks, 6, 2))
    return [(x, np.where(np.arange(6) < 3, "a", "b")) for x in inputs]


def fit(n_devices=None, checkpoint=None, tasks=None, **settings):
    source, target = tasks or (make_tasks(11, 0), make_tasks(3, 1))
    meta = MetaGPRegressor(**{**BASE, **FIXED, **settings}, n_devices=n_devices)
    return meta.fit(source, target, checkpoint=checkpoint)


def difference(one, other):
    pairs = zip(jax.tree.leaves(one.particles_), jax.tree.leaves(other.particles_), strict=True)
    traces = np.abs(one.loss_trace_ - other.loss_trace_).max()
    return max(traces, *(np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in pairs))


def fit_labels(n_devices=None):
    meta = MetaGPClassifier(0.5, mean="constant", kernel="rbf", n_steps=5, n_devices=n_devices, **FIXED)
    return meta.fit(make_labels(3, 0), make_labels(2, 1))


def fit_large(n_devices=None):
    """Three particles: a number with which eight has nothing in common."""
    large = make_tasks(3, 2, largest=24), make_tasks(2, 3, largest=24)
    return fit(n_devices, tasks=large, inference="svgd", n_particles=3)


FITS = {
    "mini-batches": partial(fit, batch_size=5),
    "particles and tasks": partial(fit, **SVGD, kernel=MLPKernel((4,), n_features=2)),
    "runs": partial(fit, alpha=[0.0, 0.5], inference="laplace", n_particles=4),
    "large tasks": fit_large,
    "labels": fit_labels,
}


def on_many_devices():
    print("n_devices", jax.device_count())
    for name, fit_on in FITS.items():
        print(f"{name}: {difference(fit_on(1), fit_on()):.1e}", flush=True)


def as_process(rank, address, n_chunks, n_steps, checkpoint, out):
    """One of two that share a fit; the second ends by itself after some chunks, if it is told to."""
    jax.distributed.initialize(address, 2, int(rank), heartbeat_timeout_seconds=10)
    original, left = loop.run_chunk, [int(n_chunks)]

    def run_chunk(*arguments):
        if left[0] == 0:
            os._exit(9)
        left[0] -= 1
        return original(*arguments)

    if int(n_chunks) > 0:
        loop.run_chunk = run_chunk
    settings = {**SHARED, "n_steps": int(n_steps), "random_state": 3 + int(rank)}  # the first process's seed counts
    meta = fit(checkpoint=checkpoint, **settings)
    np.savez(f"{out}.{rank}.npz", meta.loss_trace_, *jax.tree.leaves(meta.particles_))


if __name__ == "__main__":
    if sys.argv[1] == "devices":
        on_many_devices()
    else:
        as_process(*sys.argv[2:])
