"""What a user repeats is compiled once: other numbers, seeds and similar sizes find the program ready."""

import jax
import numpy as np
import pytest

from metaprior.predict.batches import SMALL
from metaprior.tasks.types import as_tasks
from metaprior.wfem import SVGD, ConstantMean, Gaussian, HyperPrior, Laplace, MLPKernel, Training, WFEMRegressor
from metaprior.wfem.runs import make_run, make_scaling, stack_runs
from metaprior.wfem.settings import Settings
from metaprior.wfem.training import TrainConfig, train

EVENT = "/jax/core/compile/backend_compile_duration"
KERNEL = MLPKernel(hidden_sizes=(2,), n_features=2)


@pytest.fixture
def compilations():
    """A function that says how many programs XLA compiled since it was last called."""
    durations = []

    def listen(event, duration, **_):
        if event == EVENT:
            durations.append(duration)

    def count():
        n = len(durations)
        durations.clear()
        return n

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield count
    jax.monitoring.unregister_event_duration_listener(listen)


def make_tasks(n_tasks, size, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-2, 2, (n_tasks, size))
    return [(x, np.sin(x + rng.normal()) + 0.1 * rng.normal(size=size)) for x in inputs]


def fit(alpha=0.5, data_seed=0, **settings):
    training = {name: settings.pop(name) for name in Training.__dataclass_fields__ if name in settings}
    fixed = {"mean": "constant", "kernel": KERNEL, "likelihood": Gaussian(0.1), "inference": Laplace()}
    settings = {**fixed, "training": Training(**{"n_steps": 3, **training}), "temperature": 4.0, **settings}
    source, target = make_tasks(2, 3, data_seed), make_tasks(2, 3, data_seed + 1)
    return WFEMRegressor(alpha=alpha, **{"random_state": 0, **settings}).fit(source, target)


def test_the_counter_counts(compilations):
    double = jax.jit(lambda x: 2.0 * x)
    double(np.ones(3, "float32"))
    assert compilations() == 1
    double(np.zeros(3, "float32"))
    assert compilations() == 0
    double(np.zeros(4, "float32"))
    assert compilations() == 1


def test_a_program_found_in_the_cache_folder_counts(compilations):
    """Else a second compilation would go unseen wherever an earlier test, or another worker, left the program."""
    found = []
    listen = lambda event, **_: found.append(event)  # noqa: E731
    jax.monitoring.register_event_listener(listen)
    for _ in range(2):
        jax.jit(lambda x: 3.0 * x - 1.0)(np.ones(3, "float32"))  # a new function, of which JAX knows nothing
        assert compilations() == 1
    jax.monitoring.unregister_event_listener(listen)
    assert "/jax/compilation_cache/cache_hits" in found or not jax.config.jax_compilation_cache_dir


def test_the_first_fit_compiles_and_others_of_equal_shapes_do_not(compilations):
    fit()
    assert compilations() > 0
    fit()
    fit(data_seed=7)
    assert compilations() == 0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("alpha", [0.0, 1.0, 0.2, "pooled"]),
        ("temperature", [1.0, 30.0]),
        ("likelihood", [Gaussian(0.01), Gaussian(2.0)]),
        ("hyperprior", [HyperPrior(std=0.1), HyperPrior(std={"weights": 3.0, "scales": 0.5})]),
        ("learning_rate", [1e-4, 0.3]),
        ("random_state", [1, 2]),
        ("n_steps", [1, 50, 101]),
    ],
)
def test_a_sweep_of_fits_compiles_nothing_after_the_first(compilations, name, values):
    fit()
    compilations()
    for value in values:
        fit(**{name: value})
        assert compilations() == 0, f"{name}={value}"


def test_alpha_and_seed_compile_nothing_for_another_recipe(compilations):
    settings = {"inference": SVGD(2), "batch_size": 2, "dtype": "float64"}
    fit(**settings)
    assert compilations() > 0
    fit(alpha=0.0, random_state=3, **settings)
    fit(alpha=1.0, random_state=4, **settings)
    assert compilations() == 0


def test_a_temperature_by_rule_compiles_once_for_all_alpha(compilations):
    fit(temperature="bayes")
    compilations()
    for alpha in (0.0, 0.3, 1.0):
        fit(alpha, temperature="bayes")
    assert compilations() == 0


def test_other_sizes_adapt_and_predict_without_compiling(compilations):
    meta = fit()

    def use(n_context, n_query):
        [context], [query] = make_tasks(1, n_context, n_context), make_tasks(1, n_query, n_query)
        adapted = meta.adapt(*context)
        adapted.predict(query[0], return_std=True)
        adapted.predict(query[0], return_cov=True)
        adapted.interval(query[0])
        adapted.log_density(*query)
        adapted.sample(query[0], 2, random_state=0)

    use(8, 16)
    compilations()
    for sizes in ((8, 16), (0, 1), (1, 100), (37, 5), (100, 33), (SMALL, SMALL)):
        use(*sizes)
        assert compilations() == 0, f"context and query sizes {sizes}"
    meta.adapt([], []).predict(make_tasks(1, 1000)[0][0])  # in batches
    assert compilations() == 0
    meta.adapt(*make_tasks(1, SMALL + 1)[0]).predict([[0.0]])
    assert compilations() > 0


def test_another_fit_of_equal_shapes_adapts_without_compiling(compilations):
    [context], [query] = make_tasks(1, 3), make_tasks(1, 4)
    fit().adapt(*context).predict(query[0])
    compilations()
    fit(random_state=5, likelihood=Gaussian(0.3)).adapt(*context).predict(query[0])
    assert compilations() == 0


def test_similar_sizes_evaluate_without_compiling(compilations):
    meta = fit()

    def evaluate(n_tasks, n_context, n_query):
        contexts, queries = make_tasks(n_tasks, n_context, 1), make_tasks(n_tasks, n_query, 2)
        meta.evaluate([(*context, *query) for context, query in zip(contexts, queries, strict=True)])

    evaluate(3, 6, 12)
    compilations()
    evaluate(3, 6, 12)
    evaluate(3, 5, 9)
    assert compilations() == 0
    evaluate(3, 7, 12)
    assert compilations() > 0


def test_as_many_new_tasks_again_compile_nothing(compilations):
    meta = fit()
    new = [(*task, task[0]) for task in make_tasks(12, 4)]
    meta.predict_many(new)
    compilations()
    fewer = [(x[: 4 - i % 3], y[: 4 - i % 3], query) for i, (x, y, query) in enumerate(new[:10])]
    meta.predict_many(fewer, return_std=True, latent=True)
    fit(data_seed=7).predict_many(new)
    assert compilations() == 0


def test_a_stacked_sweep_compiles_once(compilations):
    environments = [as_tasks(make_tasks(2, 3, seed), "tasks") for seed in (0, 1)]

    def sweep(alphas, seeds):
        settings = Settings(mean=ConstantMean(), kernel=KERNEL, method=SVGD(2))
        runs = [
            make_run(environments, (a, 1.0 - a), make_scaling(environments, (a, 1.0 - a), settings), settings, seed)
            for a in alphas
            for seed in seeds
        ]
        stacked = stack_runs(runs)
        rates = jax.numpy.full(len(runs), 0.01)
        return train(stacked.problem, stacked.particles, stacked.key, TrainConfig(SVGD(2)), 4, rates)

    sweep((0.0, 0.5), (0, 1))
    assert compilations() > 0
    sweep((0.3, 1.0), (2, 3))
    assert compilations() == 0
