"""Item 3: condition on 10,000 new tasks of 5 points and predict 50 queries of each."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from metaprior.datasets import Sinusoid
from metaprior.tasks.types import TestTask
from metaprior.wfem import Gaussian, Training, WFEMRegressor
from metaprior.wfem.gp import Queries, adapt_and_predict
from speed import contestants_jax, floor, machine
from speed.problem import NOISE_STD, OUTPUT_SCALE, Networks, first_particle, make_tasks, networks_of
from speed.report import Row, Section, duration, rows_of
from speed.step import Disagreement
from speed.timing import Contestant, alternate

N_CONTEXT, N_QUERIES = 5, 50
TOLERANCE = 1e-3  # of the spread of y and of the prior, in float32
OURS = "metaprior"
ROWS_IN_CACHE = 16_384  # 2 MB: fits in the caches, and large enough to use all cores
SUBSET = 300  # tasks for scikit-learn, one by one
GPYTORCH_BATCH = 1000  # faster than one batch, and than batches of 250

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]  # x and y of contexts, x of queries, in float32
Moments = tuple[Any, Any]  # mean and standard deviation of new observations, (tasks, queries) or lists of tasks


def measure(quick: bool, say: Callable[[str], None]) -> list[Section]:
    """Measure adaptation from a list of tasks, as users have them, and from padded arrays."""
    n_tasks, rounds = (2000, 3) if quick else (10_000, 7)
    say("fitting a prior")
    meta = fitted()
    tasks = Sinusoid(0.5).test_tasks(n_tasks, N_CONTEXT, N_QUERIES, 0)
    networks = networks_of(first_particle(meta.model_.members[0].particles))
    arrays = stacked(tasks)
    of_lists, of_arrays = our_contestants(meta, tasks), array_contestants(meta, networks, arrays)
    notes = []
    if machine.has_torch():
        batched, threads = _gpytorch(networks, arrays)
        notes.append(f"GPyTorch uses fast_pred_var and {threads} thread{'s' * (threads > 1)}, with which it is faster")
        of_lists["GPyTorch, batched"] = lambda: batched(stacked(tasks), GPYTORCH_BATCH)
        of_arrays["GPyTorch, batches of 1,000 tasks"] = lambda: batched(arrays, GPYTORCH_BATCH)
        of_arrays["GPyTorch, one batch"] = lambda: batched(arrays, n_tasks)
    errors = check_agreement({**of_lists, **{f"{name} of arrays": call for name, call in of_arrays.items()}})
    say(f"predictions agree: {errors}")
    work = floor.adaptation_work(n_tasks, N_CONTEXT, N_QUERIES)
    rates, whole = floor.measured_rates(ROWS_IN_CACHE), floor.measured_rates(n_tasks * (N_CONTEXT + N_QUERIES))
    least, by_layer = floor.seconds_at_least(work, rates), floor.seconds_at_least(work, whole)
    figures = {
        "disagreement": errors,
        "floor_seconds": least,
        "layer_by_layer_seconds": by_layer,
        "work": work._asdict(),
        "rates": rates._asdict(),
        "rates_layer_by_layer": whole._asdict(),
    }
    notes += [
        f"floor: {work.operations / 1e9:.3g} G operations at {rates.operations / 1e9:.3g} GFLOP/s and "
        f"{work.tanhs / 1e6:.3g} million tanhs at {rates.tanhs / 1e9:.3g} G/s, both measured in this run on "
        f"{ROWS_IN_CACHE} rows, which stay in the caches: {duration(least)}; {work.bytes / 1e6:.3g} MB in and out",
        f"one layer of all points at a time, through memory, attains {whole.operations / 1e9:.3g} GFLOP/s and "
        f"{whole.tanhs / 1e9:.3g} G tanhs/s, and would take {duration(by_layer)}; fused programs can be faster",
        "means and standard deviations agree, except for scikit-learn, which has no networks",
    ]
    configuration = {"tasks": n_tasks, "context": N_CONTEXT, "queries": N_QUERIES, "networks": "4 x 32 tanh, two"}
    contestants = [Contestant(name, call) for name, call in of_lists.items()]
    subset = tasks[:SUBSET]
    contestants.append(Contestant("scikit-learn, task by task", lambda: sklearn_loop(subset), len(subset) / n_tasks))
    times = alternate(contestants, rounds, say)
    learned = f"scikit-learn fits and predicts {len(subset)} tasks, scaled to {n_tasks}; RBF kernel, no optimizer"
    from_list = Section(
        f"Adaptation to {n_tasks} tasks, from a list of tasks",
        configuration,
        "call",
        _and_by_layer(rows_of(times, OURS, least), by_layer),
        [*notes, learned],
        figures,
    )
    times = alternate([Contestant(name, call) for name, call in of_arrays.items()], rounds, say)
    rows = _and_by_layer(rows_of(times, OURS, least), by_layer)
    title = f"Adaptation to {n_tasks} tasks, from padded arrays to arrays"
    return [from_list, Section(title, configuration, "call", rows, notes, figures)]


def _and_by_layer(rows: list[Row], by_layer: float) -> list[Row]:
    return [row._replace(columns={"times layer by layer": f"{row.seconds.median / by_layer:.3g}"}) for row in rows]


def fitted() -> WFEMRegressor:
    """Return a briefly trained prior with the paper's networks, on unscaled data as the other libraries use."""
    training = Training(n_steps=200, standardize=False, progress=False)
    likelihood = Gaussian(NOISE_STD)
    meta = WFEMRegressor(likelihood=likelihood, temperature="bayes", training=training, random_state=0)
    return meta.fit(*make_tasks())


def stacked(tasks: Sequence[TestTask]) -> Arrays:
    """Stack tasks of one size, as a user of another library would."""
    x, y, x_query, _ = (np.stack(parts).astype(np.float32) for parts in zip(*tasks, strict=True))
    return x, y, x_query


def our_contestants(meta: Any, tasks: Sequence[TestTask]) -> dict[str, Callable[[], Moments]]:
    """Return calls of metaprior on a list of tasks, in both precisions."""
    triples = [tuple(task[:3]) for task in tasks]
    names = {OURS: "float32", "metaprior, float64": "float64"}
    predict = lambda dtype: meta.predict_many(triples, return_std=True, dtype=dtype)  # noqa: E731
    return {name: lambda dtype=dtype: predict(dtype) for name, dtype in names.items()}


def array_contestants(meta: WFEMRegressor, networks: Networks, arrays: Arrays) -> dict[str, Callable[[], Moments]]:
    """Return calls on arrays: metaprior in both precisions, and plain jax."""
    [member] = meta.model_.members
    x, y, x_query = arrays
    predict_compiled = eqx.filter_jit(adapt_and_predict)

    def ours(dtype: str) -> Moments:
        queries = Queries(x.astype(dtype), y.astype(dtype), np.ones(y.shape, bool), x_query.astype(dtype))
        with jax.enable_x64(dtype == "float64"):
            mean, variance = predict_compiled(member.particles, member.rest, queries)
            return np.asarray(mean)[0], np.sqrt(np.asarray(variance)[0] + NOISE_STD**2)

    def plain() -> Moments:
        mean, variance = contestants_jax.predict(networks, *arrays)
        return np.asarray(mean), np.sqrt(np.asarray(variance))

    return {OURS: lambda: ours("float32"), "metaprior, float64": lambda: ours("float64"), "plain jax": plain}


def sklearn_loop(tasks: Sequence[TestTask]) -> None:
    """Fit a GP with a fixed kernel to every task."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # matrices this small gain nothing from threads
        for task in tasks:
            kernel = ConstantKernel(OUTPUT_SCALE) * RBF(1.0)
            gp = GaussianProcessRegressor(kernel, alpha=NOISE_STD**2, optimizer=None)
            gp.fit(task.x_context, task.y_context).predict(task.x_query, return_std=True)


def check_agreement(calls: dict[str, Callable[[], Moments]]) -> dict[str, float]:
    """Return the largest relative differences from the first contestant's predictions; raise if they are large."""
    results = {name: [np.asarray(part, float) for part in call()] for name, call in calls.items()}
    mean, deviation = next(iter(results.values()))
    found = {}
    for name, (other_mean, other_deviation) in results.items():
        of_mean = np.abs(other_mean - mean).max() / mean.std()
        of_deviation = np.abs(other_deviation - deviation).max() / math.sqrt(OUTPUT_SCALE)
        found[name] = float(max(of_mean, of_deviation))
        if not found[name] <= TOLERANCE:
            raise Disagreement(f"{name} differs: means by {of_mean:.1e}, standard deviations by {of_deviation:.1e}")
    return found


def _gpytorch(networks: Networks, arrays: Arrays) -> tuple[Callable[[Arrays, int], Moments], int]:
    """Return batched prediction with the faster number of threads, and that number."""
    import torch

    from speed import contestants_torch

    parts = contestants_torch.SharedParts(networks)

    class Predictor:
        n_threads = 1

        def __call__(self, arrays: Arrays, batch: int) -> Moments:
            torch.set_num_threads(self.n_threads)
            return contestants_torch.gpytorch_predict(parts, *arrays, batch)

    predictor = Predictor()
    few = (arrays[0][:GPYTORCH_BATCH], arrays[1][:GPYTORCH_BATCH], arrays[2][:GPYTORCH_BATCH])
    call = lambda: predictor(few, GPYTORCH_BATCH)  # noqa: E731
    return predictor, contestants_torch.choose_threads(predictor, call, machine.n_cores())
