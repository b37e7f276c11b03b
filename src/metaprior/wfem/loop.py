"""What happens between chunks of training steps: the deadline and early stopping.

The training loop: chunks of compiled steps, for one run or for many stacked runs at once.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Key, PyTree

from metaprior.checks import Argument, Message
from metaprior.wfem.adaptation import Queries, mixture_log_density, predict
from metaprior.wfem.checkpoint import Checkpoint, describe
from metaprior.wfem.inference import Method
from metaprior.wfem.objective import Gibbs, Problem, WeightedBatch
from metaprior.wfem.prior import GPPrior
from metaprior.wfem.steps import (
    CHUNK,
    Chunk,
    State,
    TrainConfig,
    initialize,
    make_mesh,
    run_chunk,
    shard_state,
    to_host,
)


class Deadline:
    """How many steps can be taken before a point in time, at the speed of the last chunk."""

    def __init__(self, n_steps: int, chunk: int, deadline: float | None):
        self.n_steps, self.chunk, self.deadline = n_steps, chunk, deadline
        self.last: float | None = None  # the end of the last chunk; the first one compiles, so its speed is not used

    def affordable_steps(self, done: int) -> int:
        """Return the step to stop at, now that `done` steps are done."""
        if self.deadline is None:
            return self.n_steps
        now = time.monotonic()
        left = self.deadline - now
        chunks = np.inf if self.last is None else left / max(now - self.last, 1e-9)
        self.last = now
        return done if left <= 0 else int(min(self.n_steps, done + np.floor(chunks) * self.chunk))


class EarlyStoppingState(NamedTuple):
    """The state of early stopping, as arrays."""

    best: PyTree
    best_score: np.ndarray  # (runs,), as are the next two
    best_step: np.ndarray
    waited: np.ndarray
    scores: np.ndarray  # (chunks, runs)


class EarlyStopping:
    """The best particles of every run so far, and whether any run should go on."""

    def __init__(self, particles: PyTree, patience: int | None):
        n_runs = len(jax.tree.leaves(particles)[0])
        self.best = particles
        self.best_score = np.full(n_runs, np.inf)
        self.best_step = np.zeros(n_runs, int)
        self.waited = np.zeros(n_runs, int)
        self.scores: list[np.ndarray] = []
        self.patience = np.inf if patience is None else patience

    def update(self, particles: PyTree, scores: np.ndarray, step: int) -> None:
        """Add the validation scores after a step; lower is better."""
        running = self.running
        better = running & (scores < self.best_score)
        self.best = _select(jnp.asarray(better), particles, self.best)
        self.best_score = np.where(better, scores, self.best_score)
        self.best_step = np.where(better, step, self.best_step)
        self.waited = np.where(better, 0, self.waited + running)
        self.scores.append(scores)

    def state(self) -> EarlyStoppingState:
        """Return a snapshot of the state."""
        scores = np.stack(self.scores) if self.scores else np.empty((0, len(self.waited)))
        return EarlyStoppingState(self.best, self.best_score, self.best_step, self.waited, scores)

    def restore(self, state: EarlyStoppingState) -> None:
        """Restore the state from a snapshot."""
        self.best, self.best_score, self.best_step, self.waited, scores = state
        self.scores = list(scores)

    @property
    def running(self) -> np.ndarray:
        """(runs,): whether each run would go on by itself. The others keep the result they stopped with."""
        return self.waited < self.patience

    @property
    def finished(self) -> bool:
        """Whether every run has stopped."""
        return not self.running.any()


@eqx.filter_jit
def _select(better: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jax.vmap(lambda b, a, c: jnp.where(b, a, c))(better, n, o), new, old)


# In the order to try.
DIVERGENCE_ADVICE = (
    *("a smaller ", Argument("learning_rate"), "; a larger ", Argument("noise_std"), ", or "),
    *(Argument("noise_std", "learned"), "; a smaller ", Argument("std"), " of the hyper-prior or "),
    *(Argument("temperature"), "; ", Argument("dtype", "float64"), "."),
)


class TrainingDiverged(ArithmeticError):
    """Training produced a value that is not finite. The message says what to try."""


class Validation(NamedTuple):
    """Held-out tasks, padded: contexts to adapt to and queries to score, with a leading axis of runs."""

    queries: Queries
    y_query: Any  # (runs, tasks, queries)
    mask: Any  # (runs, tasks, queries)


class Result(NamedTuple):
    """The result of training, for all runs."""

    particles: PyTree
    loss: np.ndarray  # (runs, steps): Lbar + (log p(mode) - log p(theta)) / gamma, averaged over particles
    unconverged: np.ndarray  # (runs, steps): weight of the tasks whose evidence did not converge
    validation: np.ndarray  # (runs, chunks): negative log density of the queries; empty without validation tasks
    best_step: np.ndarray  # (runs,): the step whose particles are returned


class Snapshot(NamedTuple):
    """The state of training between two chunks."""

    state: State
    stopping: EarlyStoppingState
    trace: np.ndarray  # (runs, steps, 2), see `run_chunk`
    n_steps: np.ndarray  # (): less than asked for if a deadline has shortened training


@runtime_checkable
class BatchSource(Protocol):
    """Mini-batches from outside the problem, such as from disk."""

    @property
    def identity(self) -> str:
        """Return a digest of everything that the batches depend on."""
        ...

    def chunk(self, first: int, n_steps: int) -> tuple[WeightedBatch, ...]:
        """Return the batches of `n_steps` steps from step `first` on: leaves (steps, runs, tasks, ...)."""
        ...


def train(
    problem: Problem,
    particles: PyTree,
    keys: Key[Array, " runs"],
    config: TrainConfig,
    n_steps: int,
    learning_rate: Float[Array, " runs"],
    validation: Validation | None = None,
    patience: int | None = None,
    on_chunk: Callable[[int, float], None] | None = None,
    deadline: float | None = None,
    check_divergence: bool = True,
    checkpoint: Checkpoint | None = None,
    batches: BatchSource | None = None,
) -> Result:
    """Train all runs; every array of `problem`, `particles` and `validation` has a leading axis of runs.

    A `deadline` (of `time.monotonic`) that would be missed shortens the schedule to the chunks that fit.
    Without `check_divergence` runs that diverge do not stop the others. `batches` replace the problem's own tasks.
    """
    if checkpoint is not None:
        source = "" if batches is None else batches.identity
        given = (problem, particles, keys, learning_rate, validation)
        checkpoint.start(given, f"{describe(config.method)} {config[1:]} {n_steps} {patience} {source}")
        if (result := checkpoint.result(Result(particles, *(np.empty(0),) * 4))) is not None:
            return result
    state = State(jax.tree.map(jnp.copy, particles), initialize(particles, config), jnp.copy(keys))  # steps donate it
    stopping = EarlyStopping(particles, patience)
    traces: list[np.ndarray] = []
    if checkpoint is not None and (snapshot := checkpoint.state(_snapshot(state, stopping, traces, n_steps))):
        state, traces, n_steps = snapshot.state, [snapshot.trace], int(snapshot.n_steps)
        stopping.restore(snapshot.stopping)
    limit = Deadline(n_steps, config.chunk, deadline)
    n_runs, n_particles = jax.tree.leaves(particles)[0].shape[:2]
    mesh = make_mesh(n_runs, n_particles, config.n_devices)
    if mesh is not None:
        state = shard_state(state, mesh)
        problem, learning_rate = to_host((problem, learning_rate))
    first = sum(trace.shape[1] for trace in traces)
    while not stopping.finished and first < n_steps:
        done = min(first + config.chunk, n_steps)
        state, trace = _run_steps(problem, learning_rate, config, mesh, batches, state, (first, n_steps))
        traces.append(trace[:, : done - first])
        if check_divergence:
            _check_finite(traces[-1][..., 0], stopping.running, first, "a loss")
        if validation is not None and (batches is None or done % CHUNK == 0 or done >= n_steps):
            _validate(problem, validation, state, mesh, stopping, done)
        if on_chunk is not None:
            on_chunk(done, float(traces[-1][:, -1, 0].mean()))
        first, n_steps = done, limit.affordable_steps(done)
        if checkpoint is not None:
            checkpoint.update(_snapshot(to_host(state), stopping, traces, n_steps))
    result = _result(to_host(state), stopping, traces, problem, config.method, n_steps, check_divergence)
    if checkpoint is not None:
        checkpoint.finish(result)
    return result


def _run_steps(
    problem: Problem,
    learning_rate: Any,
    config: TrainConfig,
    mesh: Mesh | None,
    batches: BatchSource | None,
    state: State,
    steps: tuple[int, int],
) -> tuple[State, np.ndarray]:
    """Run the chunk that begins at steps[0] of a training of steps[1] steps."""
    first, last = (np.asarray(step, np.int32) for step in steps)
    fed = None if batches is None else batches.chunk(steps[0], config.chunk)
    state, trace = run_chunk((Chunk(problem, learning_rate, first, last, fed), config, mesh), state)
    return state, to_host(trace)


def _validate(
    problem: Problem, validation: Validation, state: State, mesh: Mesh | None, stopping: EarlyStopping, done: int
) -> None:
    """Score the validation tasks and update early stopping."""
    scores = to_host(_score(state.particles, problem, validation))
    _check_finite(scores[:, None], stopping.running, done - 1, "a validation score")
    stopping.update(state.particles if mesh is None else to_host(state.particles), scores, done)


def _result(
    state: State,
    stopping: EarlyStopping,
    traces: list[np.ndarray],
    problem: Problem,
    method: Method,
    n_steps: int,
    check_divergence: bool,
) -> Result:
    """Return the best particles by validation score, or the last ones without validation tasks."""
    n_runs = len(stopping.waited)
    loss, unconverged = np.moveaxis(_concatenate(traces, n_runs), 2, 0)
    if stopping.scores:
        particles = _finalize(stopping.best, problem, state.keys, method, n_steps > 0)
        return Result(particles, loss, unconverged, np.stack(stopping.scores, axis=1), stopping.best_step)
    # Losses are those before each step: a last step that diverged shows only in the particles.
    sizes = [np.abs(np.asarray(leaf)).reshape(n_runs, -1).max(axis=1) for leaf in jax.tree.leaves(state.particles)]
    if check_divergence:
        _check_finite(np.max(sizes, axis=0)[:, None], stopping.running, n_steps - 1, "a parameter")
    particles = _finalize(state.particles, problem, state.keys, method, n_steps > 0)
    return Result(particles, loss, unconverged, np.empty((n_runs, 0)), np.full(n_runs, loss.shape[1]))


def _finalize(particles: PyTree, problem: Problem, keys: Key[Array, " runs"], method: Method, trained: bool) -> PyTree:
    """Return the particles that the method keeps of every run."""
    finish = getattr(method, "finish", None)
    if finish is None:
        return particles
    arrays, static = eqx.partition(problem, lambda leaf: hasattr(leaf, "dtype"))
    found = []
    for run in range(len(keys)):
        own, of_run = (jax.tree.map(lambda leaf, run=run: leaf[run], tree) for tree in (particles, arrays))
        problem_of_run = eqx.combine(of_run, static)
        kept = finish(own, Gibbs(problem_of_run, own), keys[run]) if trained else own
        found.append(_checked(kept, own, method))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def _checked(kept: PyTree, trained: PyTree, method: Method) -> PyTree:
    """Return the particles that a method keeps, in the precision of training; raise unless they are particles."""
    same = jax.tree.structure(kept) == jax.tree.structure(trained)
    pairs = list(zip(jax.tree.leaves(kept), jax.tree.leaves(trained), strict=True)) if same else []
    counts = {np.shape(leaf)[:1] for leaf, _ in pairs}
    if len(counts) != 1 or counts & {(), (0,)} or any(np.shape(leaf)[1:] != own.shape[1:] for leaf, own in pairs):
        expected = ".finish must return particles: a pytree like those it gets, with a leading axis of particles, at "
        raise ValueError(Message(Argument("inference"), f": {type(method).__name__}{expected}least one."))
    return jax.tree.map(lambda leaf, own: jnp.asarray(leaf, own.dtype), kept, trained)


def _snapshot(state: State, stopping: EarlyStopping, traces: list[np.ndarray], n_steps: int) -> Snapshot:
    return Snapshot(state, stopping.state(), _concatenate(traces, len(stopping.waited)), np.asarray(n_steps))


def _concatenate(traces: list[np.ndarray], n_runs: int) -> np.ndarray:
    return np.concatenate(traces, axis=1) if traces else np.empty((n_runs, 0, 2))


@eqx.filter_jit
def _score(particles: PyTree, problem: Problem, validation: Validation) -> Float[Array, " runs"]:
    """Return the negative log density of the queries under the particle mixture, averaged per task, then over tasks."""
    log_density = query_log_densities(particles, problem.rest, validation)
    counts = jnp.sum(validation.mask, axis=2, dtype=log_density.dtype)
    return -jnp.mean(jnp.sum(jnp.where(validation.mask, log_density, 0.0), axis=2) / counts, axis=1)


@eqx.filter_jit
def query_log_densities(particles: PyTree, rest: GPPrior, validation: Validation) -> Float[Array, "runs tasks queries"]:
    """Return the log density of every query under the mixture over particles."""

    def one_run(particles: PyTree, rest: GPPrior, validation: Validation) -> Array:
        return mixture_log_density(predict(particles, rest, validation.queries), validation.y_query)

    return eqx.filter_vmap(one_run)(particles, rest, validation)


def _check_finite(values: np.ndarray, running: np.ndarray, first: int, what: str) -> None:
    """Raise `TrainingDiverged` for the first step at which a running run has a value that is not finite."""
    bad = ~np.isfinite(values) & running[:, None]
    if not bad.any():
        return
    run, step = np.argwhere(bad)[np.argwhere(bad)[:, 1].argmin()]
    if first + step == 0 and what == "a loss":
        raise TrainingDiverged(
            f"The loss is {values[run, step]} before the first step: the initial mean or kernel gives values that are "
            "not finite, or the kernel is not positive definite. Check a custom mean or kernel, and that stored tasks "
            "have not changed since they were written."
        )
    before = values[run, step - 1] if step > 0 else None
    met = f"Training produced {what} of {values[run, step]} at step {first + step}"
    met += f" of run {run}" if len(values) > 1 else ""
    met += f" (it was {before:.4g} one step earlier)" if before is not None else ""
    raise TrainingDiverged(Message(met, ". Try, in this order: ", *DIVERGENCE_ADVICE))
