"""Item 2: many runs (draws of tasks x weights alpha) in one program, against the same runs one after another."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.wfem import MAP
from metaprior.wfem.runs import Run, stack_runs
from metaprior.wfem.training import TrainConfig, train
from speed import floor
from speed.problem import LEARNING_RATE, N_SAMPLES, N_SOURCE, N_TARGET, make_settings, make_tasks, measured_run
from speed.report import Section, duration, rows_of
from speed.timing import Contestant, alternate, repeat

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
TRAIN_CONFIG = TrainConfig(MAP(), "adam", "constant")
OURS, LANES = "metaprior, one program", 32
FULL_STEPS = 4000  # of a run in the study of the paper


def measure(quick: bool, say: Callable[[str], None]) -> list[Section]:
    """Measure 64 draws x 5 settings in one program, in programs of 32 runs, and one after another."""
    n_draws, n_steps, rounds = (8, 100, 2) if quick else (64, 200, 3)
    say(f"setting up {n_draws * len(ALPHAS)} runs")
    runs = make_runs(n_draws, ALPHAS)
    stacked, single = stack_runs(runs), [stack_runs([run]) for run in runs]
    lanes = [stack_runs(runs[first : first + LANES]) for first in range(0, len(runs), LANES)]
    contestants = [
        Contestant(OURS, lambda: _train(stacked, n_steps), len(runs) * n_steps),
        Contestant(f"metaprior, {LANES} runs at once", lambda: _train_all(lanes, n_steps), len(runs) * n_steps),
        Contestant("metaprior, one run after another", lambda: _train_all(single, n_steps), len(runs) * n_steps),
    ]
    times = alternate(contestants, rounds, say)
    least, figures = _floor(len(runs))
    figures["ms_per_run_of_4000_steps"] = {name: 1e3 * FULL_STEPS * float(min(t)) for name, t in times.items()}
    notes = [
        f"{n_draws} draws of tasks x {len(ALPHAS)} alphas, {n_steps} steps each, without compilation; times are of one "
        f"step of one run; floor {duration(least)}",
        f"extrapolated to {FULL_STEPS} steps per run: "
        + ", ".join(f"{name} {ms:.4g} ms" for name, ms in figures["ms_per_run_of_4000_steps"].items()),
    ]
    configuration = {"draws": n_draws, "alphas": ALPHAS, "steps": n_steps}
    return [Section("Whole sweeps", configuration, "step and run", rows_of(times, OURS, least), notes, figures)]


def measure_ours(n_draws: int, n_steps: int, say: Callable[[str], None], alphas: Sequence[float] = (0.5,)) -> Section:
    """Measure only our sweep: the time per draw on this device."""
    say(f"setting up {n_draws} runs on {jax.devices()[0].device_kind}")
    stacked = stack_runs(make_runs(n_draws, alphas))
    say("compiling")
    _train(stacked, TRAIN_CONFIG.chunk)
    say(f"training {n_steps} steps")
    times = repeat(lambda: _train(stacked, n_steps), budget=30.0, least=2, most=5)
    n_runs = n_draws * len(alphas)
    least, figures = _floor(n_runs)
    rows = rows_of({OURS: np.array(times) / n_runs}, OURS, least * n_steps)
    figures["ms_per_draw"] = 1e3 * rows[0].seconds.median
    notes = [f"{n_runs} runs of {n_steps} steps at once; floor {duration(least * n_steps)} per run"]
    configuration = {"draws": n_draws, "alphas": alphas, "steps": n_steps, "device": jax.devices()[0].device_kind}
    return Section("Whole sweep on this device", configuration, "run", rows, notes, figures)


def make_runs(n_draws: int, alphas: Sequence[float]) -> list[Run]:
    """Return a run per draw of tasks and alpha, with the same initial parameters."""
    settings = make_settings()
    draws = [(seed, make_tasks(seed)) for seed in range(n_draws)]
    return [measured_run(settings, alpha, seed, tasks) for seed, tasks in draws for alpha in alphas]


def _train_all(runs: Sequence[Run], n_steps: int) -> None:
    for run in runs:
        _train(run, n_steps)


def _train(runs: Run, n_steps: int) -> None:
    rates = jnp.full(len(runs.key), LEARNING_RATE)
    jax.block_until_ready(train(runs.problem, runs.particles, runs.key, TRAIN_CONFIG, n_steps, rates).particles)


def _floor(n_runs: int) -> tuple[float, dict]:
    """Return the floor of one step of one run, and its parts."""
    work = floor.step_work(N_SOURCE + N_TARGET, N_SAMPLES)
    rates = floor.measured_rates((N_SOURCE + N_TARGET) * N_SAMPLES, n_runs)
    least = floor.seconds_at_least(work, rates)
    return least, {"floor_seconds": least, "work": work._asdict(), "rates": rates._asdict()}
