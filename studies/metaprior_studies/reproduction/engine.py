"""Many training runs as one program: any tasks of any draws, with any weights, all of one shape.

A run has as many slots as the largest scheme has tasks. To the weighted free energy every slot is an environment of its
own, so that which tasks a run sees, from where, and how much they weigh are numbers: a source task weighs alpha / N_S,
a target task (1 - alpha) / N_T, an empty slot nothing. What comes back are predictions, in the units of y.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from metaprior.gp.likelihoods import Gaussian
from metaprior.meta.adaptation import Queries, label_log_probabilities, predict
from metaprior.meta.objective import Problem, temperature
from metaprior.meta.runs import Settings, draw_many, scaling_of
from metaprior.tasks.padding import TaskBatch, TaskSet
from metaprior.tasks.scaling import Scaling, identity_scaling
from metaprior.tasks.types import Task, TestTask
from metaprior.training.loop import train
from metaprior.training.steps import TrainConfig

LANES_CPU = 32  # runs trained at once: more do not fit the caches of a processor
NUMBERS_CPU, NUMBERS = 2**28, 2**32  # kept for the gradients of all lanes: 1 GB, and 16 GB on an accelerator
CALL_NUMBERS = 2**27  # inputs of queries that are predicted in one call


class Draw(NamedTuple):
    """The tasks of one draw, shared by all schemes. All tasks have equally many samples."""

    seed: int
    source: list[Task]
    target: list[Task]
    test: TestTask  # of stacked arrays: (tasks, samples, ...)


class Spec(NamedTuple):
    """One run: which source and target tasks of a draw it sees, the weight of the source, and what to predict."""

    draw: Draw
    source: Sequence[int]
    target: Sequence[int]
    alpha: float
    test: TestTask  # of stacked arrays
    prior_std: float = 1.0  # times that of the settings
    trained: bool = True  # False: stays where it starts, as a run without tasks does

    @property
    def environments(self) -> list[list[Task]]:
        """Its source and its target tasks."""
        return [[self.draw.source[i] for i in self.source], [self.draw.target[i] for i in self.target]]

    @property
    def weights(self) -> np.ndarray:
        """Of its tasks, source tasks first."""
        shares = [np.full(len(tasks), 1 / max(len(tasks), 1)) for tasks in (self.source, self.target)]
        return np.concatenate([self.alpha * shares[0], (1 - self.alpha) * shares[1]])


@dataclass(frozen=True)
class Training:
    """The prior and how it is trained."""

    settings: Settings
    learning_rate: float
    n_steps: int


class Prediction(NamedTuple):
    """Observations at the queries of one run: mean and variance (particles, tasks, queries); of labels, the log
    probabilities (2, tasks, queries) alone."""

    mean: np.ndarray | None
    variance: np.ndarray | None
    log_probability: np.ndarray | None = None


def stack_tests(tasks: Sequence[TestTask]) -> TestTask:
    """Test tasks of one size as one, of stacked arrays."""
    return TestTask(*(np.stack(parts) for parts in zip(*tasks, strict=True)))


def predictions(
    specs: Sequence[Spec], training: Training, n_slots: int, on_chunk: Callable[[int], None] | None = None
) -> list[Prediction]:
    """Train every run and predict its queries."""
    trained = np.array([spec.trained and len(spec.weights) > 0 for spec in specs])
    predicted: dict[int, Prediction] = {}
    for rows, n_steps in ((np.flatnonzero(trained), training.n_steps), (np.flatnonzero(~trained), 0)):
        if len(rows):
            alike = [specs[i] for i in rows.tolist()]
            part = _predictions(alike, replace(training, n_steps=n_steps), n_slots, on_chunk)
            predicted.update(zip(rows.tolist(), part, strict=True))
    return [predicted[i] for i in range(len(specs))]


def _predictions(
    specs: Sequence[Spec], training: Training, n_slots: int, on_chunk: Callable[[int], None] | None
) -> list[Prediction]:
    """Of runs that take the same steps, as many at once as there are lanes."""
    scalings = [_scaling(spec, training.settings) for spec in specs]
    lanes = min(len(specs), _lanes(specs[0], training.settings, n_slots))
    predicted: list[Prediction] = []
    for first in range(0, len(specs), lanes):
        rows = [i % len(specs) for i in range(first, first + lanes)]  # the last are padded: equal shapes compile once
        chosen, units = [specs[i] for i in rows], [scalings[i] for i in rows]
        particles, rest = _fit(chosen, units, training, n_slots, on_chunk)
        predicted += _predict(particles, rest, chosen, units, training.settings)[: len(specs) - first]
    return predicted


def _fit(
    specs: Sequence[Spec],
    scalings: Sequence[Scaling],
    training: Training,
    n_slots: int,
    on_chunk: Callable[[int], None] | None,
) -> tuple[Any, Any]:
    """Particles and the rest of the prior of every run, after training."""
    settings, dtype = training.settings, jnp.zeros(()).dtype
    tasks, weights = _slots(specs, scalings, n_slots, dtype)
    draw_keys, train_keys = jnp.unstack(jax.vmap(jax.random.split)(_keys(specs)), axis=1)
    y_std = np.array([float(scaling.y_std) for scaling in scalings])
    prior_std = np.array([spec.prior_std for spec in specs])
    particles, rest, hyperprior = draw_many(draw_keys, len(scalings[0].x_mean), settings, y_std, prior_std)
    if training.n_steps == 0:
        return particles, rest
    problem = _problems(tasks, rest, hyperprior, weights, settings.temperature)
    rates = jnp.full(len(specs), training.learning_rate, dtype)
    report = None if on_chunk is None else lambda step, loss: on_chunk(step)
    train_config = TrainConfig(settings.method)
    result = train(
        problem, particles, train_keys, train_config, training.n_steps, rates, on_chunk=report, check_divergence=False
    )
    return result.particles, rest


def _slots(specs: Sequence[Spec], scalings: Sequence[Scaling], n_slots: int, dtype: Any) -> tuple[TaskSet, np.ndarray]:
    """The tasks of every run in its slots, and the weights of the slots. Empty ones repeat the first task."""
    pools = [[*spec.environments[0], *spec.environments[1]] or spec.draw.target[:1] for spec in specs]
    shape = (len(specs), n_slots, *pools[0][0].x.shape)
    x, y = np.empty(shape, dtype), np.empty(shape[:3], dtype)
    weights = np.zeros((len(specs), n_slots), dtype)
    for i, (spec, scaling, pool) in enumerate(zip(specs, scalings, pools, strict=True)):
        filled = [*pool, *pool[:1] * (n_slots - len(pool))]
        x[i] = scaling.inputs(np.stack([task.x for task in filled]))
        y[i] = scaling.outputs(np.stack([task.y for task in filled]))
        weights[i, : len(spec.weights)] = spec.weights
    seen = np.arange(n_slots) < np.array([len(spec.weights) for spec in specs])[:, None]
    batch = TaskBatch(x, y, np.ones(y.shape, bool), seen, (1,) * n_slots)
    return TaskSet((batch,)), weights


def _predict(
    particles: Any, rest: Any, specs: Sequence[Spec], scalings: Sequence[Scaling], settings: Settings
) -> list[Prediction]:
    """Predictions of every run; as many runs in one call as fit."""
    select_run = max(spec.test.x_context.size + spec.test.x_query.size for spec in specs)
    at_once = int(np.clip(CALL_NUMBERS // select_run, 1, len(specs)))
    n_tasks = max(len(spec.test.y_query) for spec in specs)
    predicted: list[Prediction] = []
    for first in range(0, len(specs), at_once):
        rows = np.arange(first, first + at_once) % len(specs)
        queries = [_queries(specs[i].test, scalings[i], n_tasks) for i in rows.tolist()]
        stacked = Queries(*(np.stack(parts) for parts in zip(*queries, strict=True)))
        taken = jax.tree.map(lambda leaf, rows=rows: leaf[rows] if eqx.is_array(leaf) else leaf, (particles, rest))
        outputs = [np.asarray(output, float) for output in _moments(taken[0], taken[1], stacked)]
        for j, i in enumerate(rows[: len(specs) - first].tolist()):
            parts = [output[j][:, : len(specs[i].test.y_query)] for output in outputs]
            predicted.append(_in_units(parts, scalings[i]))
    return predicted


@eqx.filter_jit
def _moments(particles: Any, rest: Any, queries: Queries) -> tuple[Any, ...]:
    def one_run(particles: Any, rest: Any, queries: Queries) -> tuple[Any, ...]:
        prediction = predict(particles, rest, queries)
        if not isinstance(prediction.likelihood, Gaussian):
            return (label_log_probabilities(prediction),)
        noise = jnp.exp(2.0 * prediction.likelihood.log_noise_std)
        return prediction.mean, prediction.variance + noise[:, None, None]

    return eqx.filter_vmap(one_run)(particles, rest, queries)


def _in_units(parts: list[np.ndarray], scaling: Scaling) -> Prediction:
    if len(parts) == 1:
        return Prediction(None, None, parts[0])
    return Prediction(scaling.undo_mean(parts[0]), scaling.undo_variance(parts[1]))


def _queries(test: TestTask, scaling: Scaling, n_tasks: int) -> Queries:
    """Scaled, and padded by repeats of the last task."""
    rows = np.minimum(np.arange(n_tasks), len(test.y_query) - 1)
    dtype = jnp.zeros(()).dtype
    x, y = scaling.inputs(test.x_context[rows]).astype(dtype), scaling.outputs(test.y_context[rows]).astype(dtype)
    return Queries(x, y, np.ones(y.shape, bool), scaling.inputs(test.x_query[rows]).astype(dtype))


def _scaling(spec: Spec, settings: Settings) -> Scaling:
    """Learned from what the run sees; who sees nothing has nothing to scale by."""
    if not len(spec.weights):
        return identity_scaling(spec.test.x_query.shape[-1])
    return scaling_of(spec.environments, (spec.alpha, 1.0 - spec.alpha), settings)


def _lanes(spec: Spec, settings: Settings, n_slots: int) -> int:
    select_run = n_slots * len(spec.draw.target[0].y) * (1000 + spec.test.x_query.shape[-1]) * settings.n_particles
    if jax.default_backend() == "cpu":
        return min(LANES_CPU, max(NUMBERS_CPU // select_run, 1))
    return max(NUMBERS // select_run, 1)


def _keys(specs: Sequence[Spec]) -> Any:
    return jax.vmap(jax.random.key)(np.array([spec.draw.seed for spec in specs], np.uint32))


@eqx.filter_jit
def _problems(tasks: TaskSet, rest: Any, hyperprior: Any, weights: Any, rule: float | str) -> Problem:
    def one_run(tasks: TaskSet, rest: Any, hyperprior: Any, weights: Any) -> Problem:
        gamma = temperature(rule, tasks, weights) if isinstance(rule, str) else jnp.asarray(rule, weights.dtype)
        return Problem(tasks, rest, hyperprior, weights, gamma)

    return eqx.filter_vmap(one_run)(tasks, rest, hyperprior, weights)
