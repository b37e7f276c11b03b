"""The measured problem: N tasks of M samples, and the paper's prior with two 4 x 32 tanh networks.

All contestants get the same numbers: `data_of` returns the tasks of a run, their weights and the temperature, and
`networks_of` returns its parameters as weights and biases of the mean and the feature network.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from metaprior.datasets import Sinusoid
from metaprior.tasks.scaling import identity_scaling
from metaprior.tasks.types import Task
from metaprior.wfem import MAP, Gaussian, MLPKernel, MLPMean
from metaprior.wfem.inference import Method
from metaprior.wfem.objective import task_weights
from metaprior.wfem.runs import Run, make_run
from metaprior.wfem.settings import Settings

HIDDEN = (32, 32, 32, 32)
FEATURES = 8
OUTPUT_SCALE = 0.5
NOISE_STD = 0.1
LEARNING_RATE = 1e-3
MODE = MAP()
N_SOURCE, N_TARGET, N_SAMPLES, ALPHA = 25, 5, 5, 0.5

Layers = list[tuple[np.ndarray, np.ndarray]]  # weight (outputs, inputs) and bias (outputs,) of every layer


class Data(NamedTuple):
    """The data of the loss."""

    x: np.ndarray  # (tasks, samples, input_dim)
    y: np.ndarray  # (tasks, samples)
    weights: np.ndarray  # (tasks,), of -log evidence / samples
    temperature: float


class Networks(NamedTuple):
    """The parameters; with several particles, arrays have a leading axis of particles."""

    mean: Layers
    features: Layers


def make_settings(hidden: tuple[int, ...] = HIDDEN, method: Method = MODE) -> Settings:
    """Return the paper's prior with fixed noise, without standardization."""
    return Settings(
        mean=MLPMean(hidden),
        kernel=MLPKernel(hidden, n_features=FEATURES, output_scale=OUTPUT_SCALE),
        likelihood=Gaussian(NOISE_STD),
        temperature="bayes",
        method=method,
        standardize=False,
    )


def make_tasks(seed: int = 0, n_source: int = N_SOURCE, n_target: int = N_TARGET) -> list[list[Task]]:
    """Return the source and target tasks of one draw."""
    environment = Sinusoid(0.5)
    rng = np.random.default_rng(seed)
    return [environment.source_tasks(n_source, N_SAMPLES, rng), environment.target_tasks(n_target, N_SAMPLES, rng)]


def measured_run(settings: Settings, alpha: float = ALPHA, seed: int = 0, tasks: list[list[Task]] | None = None) -> Run:
    """Return a run of the measured problem, set up as in `fit`."""
    tasks = make_tasks(seed) if tasks is None else tasks
    return make_run(tasks, [alpha, 1.0 - alpha], identity_scaling(tasks[0][0].x.shape[1]), settings, seed)


def data_of(run: Run) -> Data:
    """Return the data of a run whose tasks all have the same size."""
    problem = run.problem
    [bucket], [weights] = problem.tasks.buckets, task_weights(problem.tasks, problem.environment_weights)
    assert np.all(bucket.mask), "tasks must have the same size"
    return Data(np.asarray(bucket.x), np.asarray(bucket.y), np.asarray(weights), float(problem.temperature))


def networks_of(theta: Any) -> Networks:
    """Return the parameters of the library's prior, or their gradient, as plain arrays."""

    def layers(network: Any) -> Layers:
        return [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.layers]

    return Networks(layers(theta.mean.network), layers(theta.kernel.features))


def first_particle(tree: Any) -> Any:
    """Return the first particle of a pytree of particles."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def flat(networks: Any) -> np.ndarray:
    """Return all numbers of such networks as one vector."""
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(networks)])
