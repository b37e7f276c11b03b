"""What happens between chunks of training steps: the deadline and early stopping."""

import time
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree


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
