"""The only training loop: chunks of steps, for one run or for many stacked runs at once."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from metaprior.gp.prior import GPPrior
from metaprior.meta.adaptation import Queries, mixture_log_density, predict
from metaprior.meta.hyper_laplace import sample_around_mode
from metaprior.meta.methods import Laplace, Method
from metaprior.meta.objective import Problem, WeightedBatch
from metaprior.training.checkpoint import Checkpoint
from metaprior.training.devices import detect_lost_process, make_mesh, shard_state, to_host
from metaprior.training.early_stopping import Deadline, EarlyStopping, EarlyStoppingState
from metaprior.training.steps import CHUNK, Chunk, State, TrainConfig, initialize, run_chunk


class Validation(NamedTuple):
    """Held-out tasks, padded: contexts to adapt on, queries to score (runs first)."""

    queries: Queries
    y_query: Any  # (runs, tasks, queries)
    mask: Any  # (runs, tasks, queries)


class Result(NamedTuple):
    """What training gives, for all runs."""

    particles: PyTree
    loss: np.ndarray  # (runs, steps): Lbar + (log p(mode) - log p(theta)) / gamma, averaged over particles
    validation: np.ndarray  # (runs, chunks): negative log density of the queries; empty without validation tasks
    best_step: np.ndarray  # (runs,): the step whose particles are returned


class Snapshot(NamedTuple):
    """Where training stands between two chunks, with all that the rest of it depends on."""

    state: State
    memory: EarlyStoppingState
    loss: np.ndarray  # (runs, steps)
    n_steps: np.ndarray  # (): fewer than asked for where a deadline has cut them


@runtime_checkable
class BatchSource(Protocol):
    """Mini-batches from elsewhere, such as a disk."""

    @property
    def identity(self) -> str:
        """A digest of all that the batches depend on: a training is the same if it is fed the same."""
        ...

    def chunk(self, first: int, n_steps: int) -> tuple[WeightedBatch, ...]:
        """Those of `n_steps` steps from the `first` on, maybe beyond the last one: leaves (steps, runs, tasks, ...)."""
        ...


class TrainingDiverged(ArithmeticError):
    """Training met a number that is not finite; the message says what to try."""


def train(
    problem: Problem,
    particles: PyTree,
    keys: Key[Array, " runs"],
    train_config: TrainConfig,
    n_steps: int,
    learning_rate: Float[Array, " runs"],
    validation: Validation | None = None,
    patience: int | None = None,
    on_chunk: Callable[[int, float], None] | None = None,
    deadline: float | None = None,
    check_divergence: bool = True,
    checkpoint: Checkpoint | None = None,
    feed: BatchSource | None = None,
) -> Result:
    """Train all runs. Every array of `problem`, `particles` and `validation` has a leading axis of runs.

    Where `deadline` (of `time.monotonic`) would not be met, the schedule is cut to end by then, to the nearest chunk.
    `check_divergence` raises where a run diverges; without it the others go on. With a `checkpoint` that knows of this training it
    goes on from there. A `feed` gives the mini-batches, in place of the problem's tasks.
    """
    if checkpoint is not None:
        given = (problem, particles, keys, learning_rate, validation)
        source = "" if feed is None else feed.identity
        checkpoint.enter(given, f"{train_config.method} {train_config[1:]} {n_steps} {patience} {source}")
        nothing = np.empty(0)
        if (result := checkpoint.result(Result(particles, nothing, nothing, nothing))) is not None:
            return result
    state = State(
        jax.tree.map(jnp.copy, particles), initialize(particles, train_config), jnp.copy(keys)
    )  # steps use it up
    stopping = EarlyStopping(particles, patience)
    losses: list[np.ndarray] = []
    if (
        checkpoint is not None
        and (snapshot := checkpoint.state(_snapshot(state, stopping, losses, n_steps))) is not None
    ):
        state, losses, n_steps = snapshot.state, [snapshot.loss], int(snapshot.n_steps)
        stopping.restore(snapshot.memory)
    clock = Deadline(n_steps, train_config.chunk, deadline)
    n_runs, n_particles = jax.tree.leaves(particles)[0].shape[:2]
    devices = make_mesh(n_runs, n_particles, train_config.n_devices)
    if devices is not None:  # where there are many processes, what they all have must be NumPy's
        state = shard_state(state, devices)
        problem, learning_rate = to_host((problem, learning_rate))
    first = sum(loss.shape[1] for loss in losses)
    while not stopping.finished and first < n_steps:
        done = min(first + train_config.chunk, n_steps)
        fed = None if feed is None else feed.chunk(first, train_config.chunk)
        chunk = Chunk(problem, learning_rate, np.asarray(first, np.int32), np.asarray(n_steps, np.int32), fed)
        with detect_lost_process():
            state, loss = run_chunk((chunk, train_config, devices), state)
            losses.append(to_host(loss)[:, : done - first])
        if check_divergence:
            _check_finite(losses[-1], stopping.running, first, "a loss")
        looked_at = feed is None or done % CHUNK == 0 or done >= n_steps  # chunks of a feed may be shorter
        if validation is not None and looked_at:
            with detect_lost_process():
                scores = to_host(_score(state.particles, problem, validation))
            _check_finite(scores[:, None], stopping.running, done - 1, "a validation score")
            stopping.update(state.particles if devices is None else to_host(state.particles), scores, done)
        if on_chunk is not None:
            on_chunk(done, float(losses[-1][:, -1].mean()))
        first, n_steps = done, clock.affordable_steps(done)
        if checkpoint is not None:
            checkpoint.keep(_snapshot(to_host(state), stopping, losses, n_steps))
    result = _result(to_host(state), stopping, losses, problem, train_config.method, n_steps, check_divergence)
    if checkpoint is not None:
        checkpoint.finish(result)
    return result


def _result(
    state: State,
    stopping: EarlyStopping,
    losses: list[np.ndarray],
    problem: Problem,
    method: Method,
    n_steps: int,
    check_divergence: bool,
) -> Result:
    """What comes of a training that has ended."""
    n_runs = len(stopping.waited)
    loss = np.concatenate(losses, axis=1) if losses else np.empty((n_runs, 0))
    if stopping.scores:
        particles = _finished(stopping.best, problem, state.keys, method, n_steps > 0)
        return Result(particles, loss, np.stack(stopping.scores, axis=1), stopping.best_step)
    # The loss is that before each step: what the last step did is seen only in the particles.
    sizes = [np.abs(np.asarray(leaf)).reshape(n_runs, -1).max(axis=1) for leaf in jax.tree.leaves(state.particles)]
    if check_divergence:
        _check_finite(np.max(sizes, axis=0)[:, None], stopping.running, n_steps - 1, "a parameter")
    particles = _finished(state.particles, problem, state.keys, method, n_steps > 0)
    return Result(particles, loss, np.empty((n_runs, 0)), np.full(n_runs, loss.shape[1]))


def _finished(particles: PyTree, problem: Problem, keys: Key[Array, " runs"], method: Method, trained: bool) -> PyTree:
    """What the method makes of the particles in the end. Initial parameters are no mode to draw around."""
    if not isinstance(method, Laplace):
        return particles
    if not trained:
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, method.n_draws, axis=1), particles)
    return sample_around_mode(particles, problem, keys, method.n_draws)


def _snapshot(state: State, stopping: EarlyStopping, losses: list[np.ndarray], n_steps: int) -> Snapshot:
    loss = np.concatenate(losses, axis=1) if losses else np.empty((len(stopping.waited), 0))
    return Snapshot(state, stopping.state(), loss, np.asarray(n_steps))


@eqx.filter_jit
def _score(particles: PyTree, problem: Problem, validation: Validation) -> Float[Array, " runs"]:
    """Negative log density of the queries under the mixture over particles: the mean over each task, then tasks."""
    log_density = query_log_densities(particles, problem.rest, validation)
    counts = jnp.sum(validation.mask, axis=2, dtype=log_density.dtype)
    return -jnp.mean(jnp.sum(jnp.where(validation.mask, log_density, 0.0), axis=2) / counts, axis=1)


@eqx.filter_jit
def query_log_densities(particles: PyTree, rest: GPPrior, validation: Validation) -> Float[Array, "runs tasks queries"]:
    """Log density of every query under the mixture over particles."""

    def one_run(particles: PyTree, rest: GPPrior, validation: Validation) -> Array:
        return mixture_log_density(predict(particles, rest, validation.queries), validation.y_query)

    return eqx.filter_vmap(one_run)(particles, rest, validation)


def _check_finite(loss: np.ndarray, running: np.ndarray, first: int, what: str) -> None:
    bad = ~np.isfinite(loss) & running[:, None]
    if not bad.any():
        return
    run, step = np.argwhere(bad)[np.argwhere(bad)[:, 1].argmin()]
    if first + step == 0 and what == "a loss":
        raise TrainingDiverged(
            f"The loss is {loss[run, step]} before the first step: at the start the mean or the kernel gives "
            "numbers that are not finite, or the kernel is not positive definite. Check an own mean or kernel, and "
            "that stored tasks are as they were written."
        )
    before = loss[run, step - 1] if step > 0 else None
    raise TrainingDiverged(
        f"Training met {what} of {loss[run, step]} at step {first + step}"
        + (f" of run {run}" if len(loss) > 1 else "")
        + (f" (before it was {before:.4g})" if before is not None else "")
        + ". Try, in this order: a smaller learning_rate; a larger noise_std, or noise_std='learned'; "
        "a smaller prior_std or temperature; dtype='float64'."
    )
