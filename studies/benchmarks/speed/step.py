"""Item 1: a meta-training step, with MAP and with SVGD of ten particles."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.wfem import MAP, SVGD
from metaprior.wfem.inference import Method
from metaprior.wfem.objective import log_gibbs
from metaprior.wfem.runs import Run, stack_runs
from metaprior.wfem.training import TrainConfig, train
from speed import contestants_jax, floor, machine
from speed.problem import (
    LEARNING_RATE,
    N_SAMPLES,
    N_SOURCE,
    N_TARGET,
    Data,
    Networks,
    data_of,
    first_particle,
    flat,
    make_settings,
    measured_run,
    networks_of,
)
from speed.report import Section, duration, rows_of
from speed.timing import Contestant, alternate

TOLERANCE = 1e-4
OURS = "metaprior"
N_PARTICLES = 10


class Disagreement(AssertionError):
    """Contestants do not compute the same result, and cannot be compared."""


class Budget(NamedTuple):
    """Numbers of rounds and steps."""

    rounds: int
    our_steps: int
    loop_steps: int
    compiled: bool  # measure torch.compile too


QUICK = Budget(rounds=5, our_steps=300, loop_steps=3, compiled=False)
FULL = Budget(rounds=9, our_steps=1000, loop_steps=8, compiled=True)


def measure(quick: bool, say: Callable[[str], None]) -> list[Section]:
    """Return both tables."""
    budget = QUICK if quick else FULL
    return [map_step(budget, say), stein_step(budget, say)]


def our_training(run: Run, method: Method, n_steps: int) -> Callable[[], Any]:
    """Return a call of `train`, as in `fit`."""
    stacked, train_config = stack_runs([run]), TrainConfig(method, "adam", "constant")
    rate = jnp.full(1, LEARNING_RATE)
    return lambda: train(stacked.problem, stacked.particles, stacked.key, train_config, n_steps, rate)


def our_loss_and_gradient(run: Run) -> tuple[float, np.ndarray]:
    """Return loss and flat gradient of the first particle, in the order of `Networks`."""
    theta = first_particle(run.particles)
    value, gradient = jax.jit(jax.value_and_grad(lambda theta: -log_gibbs(theta, run.problem)))(theta)
    return float(value), flat(networks_of(gradient))


def plain_loss_and_gradient(networks: Networks, data: Data) -> tuple[float, np.ndarray]:
    """Return loss and flat gradient of plain jax."""
    value, gradient = jax.jit(jax.value_and_grad(contestants_jax.loss))(networks, data)
    return float(value), flat(gradient)


def check_agreement(results: dict[str, tuple[float, np.ndarray]], tolerance: float = TOLERANCE) -> dict[str, float]:
    """Return the largest relative differences from the first contestant's loss and gradient; raise if large."""
    (_, (loss, gradient)), *_ = results.items()
    found = {}
    for name, (other_loss, other_gradient) in results.items():
        of_loss = abs(other_loss - loss) / max(abs(loss), 1e-30)
        of_gradient = np.linalg.norm(other_gradient - gradient) / max(np.linalg.norm(gradient), 1e-30)
        found[name] = float(max(of_loss, of_gradient))
        if not found[name] <= tolerance:
            raise Disagreement(
                f"{name} does not compute what the others do: the relative difference of its loss is {of_loss:.1e}, of "
                f"its gradient {of_gradient:.1e}; at most {tolerance:.0e} can be rounding. Nothing is reported."
            )
    return found


def map_step(budget: Budget, say: Callable[[str], None]) -> Section:
    """Measure MAP."""
    run = measured_run(make_settings())
    data, networks = data_of(run), networks_of(first_particle(run.particles))
    objective = lambda networks: contestants_jax.loss(networks, data)  # noqa: E731
    scanned, stepped = (contestants_jax.Training(networks, objective) for _ in range(2))
    results = {OURS: our_loss_and_gradient(run), "plain jax": plain_loss_and_gradient(networks, data)}
    n_chunks = budget.our_steps // contestants_jax.CHUNK
    contestants = [
        Contestant(OURS, our_training(run, MAP(), budget.our_steps), budget.our_steps),
        Contestant("plain jax, scan of 100 steps", lambda: scanned.in_chunks(n_chunks), n_chunks * 100),
        Contestant("plain jax, a call per step", lambda: stepped.in_steps(100), 100),
    ]
    notes = []
    if machine.has_torch():
        theirs, notes = _torch_contestants(networks, data, budget, results, say)
        contestants += theirs
    agreement = check_agreement(results)
    say(f"losses and gradients agree: {agreement}")
    times = alternate(contestants, budget.rounds, say)
    work = floor.step_work(N_SOURCE + N_TARGET, N_SAMPLES)
    return _section("Meta-training step, MAP", times, work, {"agreement": agreement}, notes, 1)


def stein_step(budget: Budget, say: Callable[[str], None]) -> Section:
    """Measure SVGD."""
    method = SVGD()
    run = measured_run(make_settings(method=method))
    data, networks = data_of(run), networks_of(run.particles)
    objective = lambda networks: contestants_jax.loss(networks, data)  # noqa: E731
    plain = contestants_jax.Training(networks, objective, contestants_jax.stein_gradient)
    directions = {OURS: our_direction(run, method), "plain jax": plain_direction(networks, objective)}
    n_steps = max(budget.our_steps // 3, 100)
    contestants = [
        Contestant(OURS, our_training(run, method, n_steps), n_steps),
        Contestant("plain jax, scan of 100 steps", lambda: plain.in_chunks(n_steps // 100), n_steps // 100 * 100),
    ]
    notes = []
    if machine.has_torch():
        from speed import contestants_torch

        batched = contestants_torch.SteinTraining(networks, data)
        directions["plain torch"] = (0.0, batched.direction().numpy().ravel())
        threads = contestants_torch.choose_threads(batched, lambda: batched.steps(5), machine.n_cores())
        notes.append(f"plain torch uses {threads} thread{'s' * (threads > 1)}, with which it is faster")
        contestants.append(Contestant("plain torch, batched by hand", lambda: batched.steps(15), 15))
    agreement = check_agreement(directions)
    say(f"directions agree: {agreement}")
    times = alternate(contestants, budget.rounds, say)
    work = floor.step_work(N_SOURCE + N_TARGET, N_SAMPLES).times(N_PARTICLES)
    figures = {"agreement": agreement}
    return _section(f"Meta-training step, SVGD with {N_PARTICLES} particles", times, work, figures, notes, N_PARTICLES)


def _torch_contestants(
    networks: Networks,
    data: Data,
    budget: Budget,
    results: dict[str, tuple[float, np.ndarray]],
    say: Callable[[str], None],
) -> tuple[list[Contestant], list[str]]:
    """Return the contestants that can run; add their losses and gradients to `results`."""
    from speed import contestants_torch

    trainings = {
        "GPyTorch, a model per task": (contestants_torch.gpytorch_loop(networks, data), budget.loop_steps),
        "GPyTorch, batched tasks": (contestants_torch.gpytorch_batched(networks, data), 60),
        "plain torch, batched by hand": (contestants_torch.plain(networks, data), 100),
    }
    if budget.compiled:
        trainings["plain torch, torch.compile"] = (contestants_torch.plain(networks, data, compiled=True), 100)
    contestants, notes = [], []
    for name, (training, n_steps) in trainings.items():
        try:
            results[name] = training.loss_and_gradient()
        except Exception as error:  # torch.compile needs a compiler, and raises many kinds of errors
            if "compile" not in name:
                raise
            notes.append(f"{name} could not run here: {type(error).__name__}")
            continue
        threads = contestants_torch.choose_threads(
            training, lambda t=training, n=n_steps: t.steps(max(n // 8, 1)), machine.n_cores()
        )
        notes.append(f"{name} uses {threads} thread{'s' * (threads > 1)}, with which it is faster")
        say(notes[-1])
        contestants.append(Contestant(name, lambda t=training, n=n_steps: t.steps(n), n_steps))
    return contestants, notes


def our_direction(run: Run, method: SVGD) -> tuple[float, np.ndarray]:
    """Return zero, in place of a loss, and the descent directions of all particles as one vector."""

    def direction(particles: Any) -> Any:
        scores = jax.vmap(jax.grad(lambda theta: log_gibbs(theta, run.problem)))(particles)
        return jax.tree.map(jnp.negative, method.direction(particles, scores))

    return 0.0, _rows(networks_of(jax.jit(direction)(run.particles)))


def plain_direction(networks: Networks, objective: Callable[[Any], Any]) -> tuple[float, np.ndarray]:
    """Return the same for plain jax."""
    return 0.0, _rows(jax.jit(lambda networks: contestants_jax.stein_gradient(networks, objective))(networks))


def _rows(networks: Any) -> np.ndarray:
    """Concatenate the numbers of all particles."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(networks)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1).ravel()


def _section(
    title: str, times: dict[str, np.ndarray], work: floor.Work, figures: dict, notes: list[str], n_particles: int
) -> Section:
    n_tasks = N_SOURCE + N_TARGET
    rates = floor.measured_rates(n_tasks * N_SAMPLES, n_particles)
    least = floor.seconds_at_least(work, rates)
    notes = [
        f"floor: {work.operations / 1e6:.3g} million operations at {rates.operations / 1e9:.3g} GFLOP/s and "
        f"{work.tanhs:.3g} tanhs at {rates.tanhs / 1e9:.3g} G/s, both measured: {duration(least)}; "
        f"{work.bytes / 1e3:.3g} kB to read and write",
        *notes,
        "all start from the same parameters; losses and gradients agree to 1e-4; float32; Adam",
    ]
    configuration = {"tasks": n_tasks, "samples": N_SAMPLES, "particles": n_particles, "networks": "4 x 32 tanh, two"}
    figures = figures | {"floor_seconds": least, "work": work._asdict(), "rates": rates._asdict()}
    return Section(title, configuration, "step", rows_of(times, OURS, least), notes, figures)
