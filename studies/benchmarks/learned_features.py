"""Where networks pay: 8 inputs, and tasks that combine four nonlinear features which only many tasks together show.

    python studies/benchmarks/learned_features.py

A minute on 2 cores.
"""

import time
from typing import Any

import numpy as np

from metaprior import MetaGPRegressor

CONTESTANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper's networks": {"mean": "mlp", "kernel": "mlp", "inference": "map"},
    "feature-linear": {"mean": "mlp", "kernel": "linear", "inference": "map"},
}
N_INPUTS, N_FEATURES, NOISE_STD = 8, 4, 0.1


def draw_features(rng: np.random.Generator) -> Any:
    """Draw a network from inputs to features."""
    first, second = rng.normal(size=(N_INPUTS, 16)) / np.sqrt(N_INPUTS) * 2, rng.normal(size=(16, N_FEATURES)) / 4
    return lambda x: np.tanh(np.tanh(x @ first) @ second * 2)


def draw_tasks(features: Any, n_tasks: int, n_samples: int, rng: np.random.Generator) -> list[Any]:
    """Draw tasks that weigh the features in their own way."""
    tasks = []
    for _ in range(n_tasks):
        x = rng.normal(size=(n_samples, N_INPUTS))
        weights = rng.normal(size=N_FEATURES) + np.array([1.0, -1.0, 0.5, 0.0])
        tasks.append((x, features(x) @ weights + NOISE_STD * rng.normal(size=n_samples)))
    return tasks


def main(n_tasks: int = 200):
    features = draw_features(np.random.default_rng(0))
    target = draw_tasks(features, n_tasks, 20, np.random.default_rng(1))
    tests = [(x[:10], y[:10], x[10:], y[10:]) for x, y in draw_tasks(features, 100, 30, np.random.default_rng(2))]
    for name, arguments in CONTESTANTS.items():
        started = time.perf_counter()
        meta = MetaGPRegressor(0.0, random_state=0, progress=False, **arguments).fit([], target)
        seconds, scores = time.perf_counter() - started, meta.evaluate(tests)
        print(
            f"{name}: RMSE {scores.rmse:.3f} ± {scores.rmse_se:.3f}, NLL {scores.nll:.2f}, "
            f"coverage {scores.coverage:.3f}, {seconds:.0f} s"
        )


if __name__ == "__main__":
    main()
