import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metaprior.tasks.types import as_tasks, as_test_tasks
from metaprior.wfem import (
    MAP,
    SVGD,
    ConstantMean,
    Gaussian,
    HyperPrior,
    MLPKernel,
    RBFKernel,
    Training,
    TrainingDiverged,
    WFEMRegressor,
    steps,
)
from metaprior.wfem import runs as library
from metaprior.wfem.adaptation import pad_queries
from metaprior.wfem.hyperprior import merge
from metaprior.wfem.loop import Validation, train
from metaprior.wfem.objective import batch_plan
from metaprior.wfem.runs import Settings, make_scaling, stack_runs
from metaprior.wfem.steps import TrainConfig

SMALL = {"mean": ConstantMean(), "kernel": MLPKernel((3,), n_features=2), "likelihood": Gaussian(0.1)}
SMALL |= {"temperature": "bayes"}
PLAIN = TrainConfig(MAP(), "sgd", "constant")


def make_tasks(n_tasks, seed, shift=0.0, sizes=(4,)):
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-2, 2, sizes[i % len(sizes)]) for i in range(n_tasks)]
    return [(x, 3 + 2 * np.sin(x + shift + 0.3 * rng.normal()) + 0.1 * rng.normal(size=len(x))) for x in inputs]


SOURCE, TARGET = make_tasks(2, 0, shift=1.0, sizes=(4, 3)), make_tasks(3, 1, sizes=(4, 4, 3))
TEST = [(*context, *query) for context, query in zip(make_tasks(3, 2), make_tasks(3, 3, sizes=(5,)), strict=True)]
RAGGED_TEST = [(x, y, x_query[:n], y_query[:n]) for n, (x, y, x_query, y_query) in zip((1, 5, 3), TEST, strict=True)]


def make_run(alpha=0.3, seed=0, environments=(SOURCE, TARGET), **settings):
    checked = [as_tasks(tasks, "tasks") for tasks in environments]
    made = Settings(**{**SMALL, **settings})
    scaling = make_scaling(checked, (alpha, 1 - alpha), made)
    return library.make_run(checked, (alpha, 1 - alpha), scaling, made, seed), scaling


def train_runs(runs, n_steps, rates, train_config=PLAIN, validation=None, patience=None):
    stacked = stack_runs(runs)
    validation = jax.tree.map(lambda leaf: np.stack([leaf] * len(runs)), validation)
    loop = (train_config, n_steps, jnp.asarray(rates), validation, patience)
    return train(stacked.problem, stacked.particles, stacked.key, *loop)


def make_validation(scaling):
    tests = as_test_tasks(TEST, "tasks", 1)
    sizes = (max(len(test.y_context) for test in tests), max(len(test.y_query) for test in tests))
    return Validation(*pad_queries(tests, scaling, *sizes, np.float64))


def pick(particles, run):
    return jax.tree.map(lambda leaf: leaf[run], particles)


def assert_close(actual, expected, rtol=1e-9, atol=1e-11):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=rtol, atol=atol), actual, expected)


def weighted_loss(theta, run, scaling, alpha, environments):
    """alpha * mean over source + (1 - alpha) * mean over target of -log evidence / M, task by task."""
    prior, loss = merge(theta, run.problem.rest), 0.0
    for weight, tasks in zip((alpha, 1 - alpha), environments, strict=True):
        for task in as_tasks(tasks, "tasks"):
            x, y = (jnp.asarray(part) for part in scaling.task(task))
            covariance = prior.kernel(x, x) + prior.likelihood.variance * jnp.eye(len(y))
            evidence = jax.scipy.stats.multivariate_normal.logpdf(y, jax.vmap(prior.mean)(x), covariance)
            loss -= weight / len(tasks) * evidence / len(y)
    return loss


def hand_log_gibbs(theta, run, *arguments):
    leaves = zip(*map(jax.tree.leaves, (theta, run.problem.hyperprior.std)), strict=True)
    log_prior = sum(jnp.sum(jax.scipy.stats.norm.logpdf(value, 0.0, std)) for value, std in leaves)
    return log_prior - run.problem.temperature * weighted_loss(theta, run, *arguments)


@pytest.mark.parametrize(("alpha", "environments"), [(0.3, (SOURCE, TARGET)), (0.0, ([], TARGET))], ids=["two", "one"])
def test_one_map_step_follows_the_gradient_of_the_log_gibbs_density(x64, alpha, environments):
    run, scaling = make_run(alpha, environments=environments, hyperprior=HyperPrior(std={"weights": 0.5}))
    theta = pick(run.particles, 0)
    by_hand = (run, scaling, alpha, environments)
    loss, gradient = jax.jit(lambda t: (weighted_loss(t, *by_hand), jax.grad(hand_log_gibbs)(t, *by_hand)))(theta)
    result = train_runs([run], 1, [0.01])
    assert_close(pick(pick(result.particles, 0), 0), jax.tree.map(lambda t, g: t + 0.01 * g, theta, gradient))
    # the loss before the step: Lbar + (log p(mode) - log p(theta)) / gamma
    leaves = zip(*map(jax.tree.leaves, (theta, run.problem.hyperprior.std)), strict=True)
    penalty = 0.5 * sum(np.sum((value / std) ** 2) for value, std in leaves)
    np.testing.assert_allclose(result.loss, [[loss + penalty / run.problem.temperature]], rtol=1e-10)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_optimizers_and_cosine_schedule_equal_optax(x64, optimizer):
    run, scaling = make_run()
    theta = pick(run.particles, 0)
    outside = getattr(optax, optimizer)(optax.cosine_decay_schedule(0.02, decay_steps=6))
    gradient = jax.jit(jax.grad(lambda theta: -hand_log_gibbs(theta, run, scaling, 0.3, (SOURCE, TARGET))))
    update, state = jax.jit(outside.update), outside.init(theta)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(6):
            updates, state = update(gradient(theta), state)
            theta = optax.apply_updates(theta, updates)
    result = train_runs([run], 6, [0.02], TrainConfig(MAP(), optimizer, "cosine"))
    assert_close(pick(pick(result.particles, 0), 0), theta)


@pytest.mark.parametrize("n_steps", [10, 12])
def test_chunks_change_nothing(x64, n_steps):
    run, _ = make_run()
    train_config = TrainConfig(MAP(), plan=batch_plan(run.problem.tasks, 2))
    small, large = (train_runs([run], n_steps, [0.01], train_config._replace(chunk=chunk)) for chunk in (4, 100))
    assert (small.loss.shape, small.best_step.tolist()) == ((1, n_steps), [n_steps])
    assert_close(small[:2], large[:2], rtol=1e-13, atol=1e-14)


def test_stacked_runs_equal_the_runs_alone(x64):
    varied = zip((0.0, 0.3, 1.0), (5, 6, 7), (0.1, 0.4, 0.2), (2.0, "bayes", "paper"), (1.0, 0.3, 2.0), strict=True)
    runs = [
        make_run(alpha, seed, likelihood=Gaussian(noise), temperature=gamma, hyperprior=HyperPrior(std=std))[0]
        for alpha, seed, noise, gamma, std in varied
    ]
    rates, train_config = [0.01, 0.03, 0.02], TrainConfig(MAP(), plan=batch_plan(runs[0].problem.tasks, 2))
    together = train_runs(runs, 30, rates, train_config)
    for index, (run, rate) in enumerate(zip(runs, rates, strict=True)):
        alone = train_runs([run], 30, [rate], train_config)
        assert_close(pick(together[:2], index), pick(alone[:2], 0))


@pytest.mark.parametrize("rate", [0.2, 1.5], ids=["would improve later", "would diverge later"])
def test_a_stacked_run_is_frozen_where_it_would_have_stopped_alone(x64, rate):
    run, scaling = make_run(kernel=RBFKernel(length_scale=3.0))
    validation, train_config = make_validation(scaling), PLAIN._replace(chunk=1)
    alone = [train_runs([run], 30, [each], train_config, validation, 1) for each in (rate, 0.001)]
    assert alone[0].loss.shape[1] == alone[0].best_step[0] + 1 < alone[1].loss.shape[1] == 30
    if rate < 1:  # so that to freeze it makes a difference
        assert train_runs([run], 30, [rate], train_config, validation).best_step[0] > alone[0].best_step[0]
    together = train_runs([run, run], 30, [rate, 0.001], train_config, validation, patience=1)
    for index, result in enumerate(alone):
        assert together.best_step[index] == result.best_step[0]
        assert_close(pick(together.particles, index), pick(result.particles, 0))


def estimator(alpha="pooled", **settings):
    training = {"n_steps": 20, "learning_rate": 0.01, "schedule": "constant", "dtype": "float64"}
    given = {name: settings.pop(name) for name in Training.__dataclass_fields__ if name in settings}
    about = {**SMALL, "random_state": 0, "training": Training(**{**training, **given}), **settings}
    return WFEMRegressor(alpha=alpha, **about)


def predict(meta):
    predictive = meta.adapt(*TARGET[0]).predictive(np.linspace(-2, 2, 6))
    return np.stack([predictive.mean(), predictive.std()])


def assert_equal_predictions(first, *others, rtol=1e-8):
    for other in others:
        np.testing.assert_allclose(predict(other), predict(first), rtol=rtol)


def test_one_svgd_particle_is_map():
    fits = [estimator(inference=method).fit(SOURCE, TARGET) for method in (MAP(), SVGD(n_particles=1))]
    assert_equal_predictions(*fits, rtol=1e-12)
    assert {leaf.dtype for leaf in jax.tree.leaves((fits[0].particles_, fits[0].loss_trace_))} == {np.dtype("float64")}


def test_mini_batches_learn_and_are_reproducible():
    settings = {"batch_size": 2, "n_steps": 200, "schedule": "cosine", "learning_rate": 0.03}
    first, again, other = (estimator(random_state=seed, **settings).fit(SOURCE, TARGET) for seed in (1, 1, 2))
    assert first.loss_trace_[-50:].mean() < first.loss_trace_[:50].mean() - 0.1
    np.testing.assert_array_equal(first.loss_trace_, again.loss_trace_)
    np.testing.assert_array_equal(predict(first), predict(again))
    assert not np.allclose(predict(first), predict(other))


def test_a_batch_of_all_tasks_is_the_full_batch():
    assert_equal_predictions(*(estimator(batch_size=size).fit(SOURCE, TARGET) for size in (None, 5, 99)), rtol=1e-12)


@pytest.mark.parametrize("patience", [None, 1])
@pytest.mark.parametrize("tasks", [TEST, RAGGED_TEST], ids=["equal", "ragged"])
def test_validation_keeps_the_best_parameters_and_scores_in_the_units_of_y(tasks, patience):
    kernel = RBFKernel(length_scale=0.3)  # nothing to draw: the first score is the best, whatever the seed
    meta = estimator(n_steps=250, kernel=kernel).fit(SOURCE, TARGET, validation_tasks=tasks, patience=patience)
    assert (len(meta.loss_trace_), len(meta.validation_trace_)) == ((250, 3) if patience is None else (200, 2))
    assert meta.best_step_ == 100 * (1 + meta.validation_trace_.argmin()) == 100
    assert_close(meta.particles_, estimator(n_steps=100, kernel=kernel).fit(SOURCE, TARGET).particles_)
    assert meta.evaluate(tasks).nll == pytest.approx(meta.validation_trace_.min(), rel=1e-9)


@pytest.mark.parametrize("validated", [False, True])
def test_no_steps_leave_the_particles_unchanged(x64, validated):
    run, scaling = make_run(method=MAP(2))
    result = train_runs([run], 0, [0.1], validation=make_validation(scaling) if validated else None)
    assert_close(pick(result.particles, 0), run.particles, rtol=0, atol=0)
    assert (result.loss.shape, result.validation.shape, result.best_step.tolist()) == ((1, 0), (1, 0), [0])


class NaNKernel(eqx.Module):
    scale: np.ndarray

    def __call__(self, first, second=None):
        shape = (len(first),) if second is None else (len(first), len(second))
        return self.scale * jnp.full(shape, jnp.nan)


ADVICE = r"at step \d+.*Try.* a smaller learning_rate"
TOO_FAST = {"optimizer": "sgd", "learning_rate": 1e15, "hyperprior": HyperPrior(std=1e-15), "dtype": "float32"}


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"optimizer": "sgd", "learning_rate": 1e12}, ADVICE),
        ({"kernel": NaNKernel(np.ones(()))}, "nan before the first step.*Check a custom mean or kernel"),
        ({**TOO_FAST, "n_steps": 1}, ADVICE),  # no loss after it
    ],
)
def test_divergence_is_reported_with_advice(settings, advice):
    with pytest.raises(TrainingDiverged, match=advice):
        estimator(**settings).fit(SOURCE, TARGET)


def test_without_source_tasks_every_alpha_that_is_allowed_is_pacoh():
    fits = [estimator(alpha).fit(source, TARGET) for alpha, source in ((0.0, None), (0.0, []), ("pooled", None))]
    assert_equal_predictions(*fits, estimator(1.0).fit(TARGET), rtol=1e-10)


@pytest.mark.parametrize("temperature", ["effective", "bayes", 7.0])
def test_source_tasks_of_weight_zero_are_as_good_as_absent(temperature):
    present, absent = (estimator(0.0, temperature=temperature).fit(source, TARGET) for source in (SOURCE, None))
    assert_equal_predictions(present, absent)
    assert present.temperature_ == pytest.approx(absent.temperature_, rel=1e-12)


@pytest.mark.parametrize("temperature", ["effective", "bayes", "paper"])
def test_alpha_equal_to_beta_is_pooling(temperature):
    fits = [estimator(alpha, temperature=temperature).fit(SOURCE, TARGET) for alpha in (2 / 5, "pooled")]
    assert_equal_predictions(*fits, estimator(0.0, temperature=temperature).fit(None, [*SOURCE, *TARGET]))


def test_one_particle_predicts_by_the_posterior_of_one_gp(x64):
    meta = estimator().fit(SOURCE, TARGET)
    [member] = meta.model_.members
    prior, scaling = merge(pick(meta.particles_, 0), member.rest), member.scaling
    x, y = scaling.task(as_tasks([TARGET[0]], "tasks")[0])
    query = scaling.inputs(np.linspace(-2, 2, 6)[:, None])
    cross, own = (np.asarray(prior.kernel(jnp.asarray(points), jnp.asarray(x))) for points in (query, x))
    gain = cross @ np.linalg.inv(own + prior.likelihood.variance * np.eye(4))
    mean = np.asarray(prior.mean.bias + gain @ (y - prior.mean.bias))
    variance = 0.5 - np.sum(gain * cross, axis=1) + prior.likelihood.variance
    np.testing.assert_allclose(predict(meta), [scaling.undo_mean(mean), scaling.y_std * np.sqrt(variance)], rtol=1e-9)


def test_map_particles_are_independent():
    one, three = (estimator(inference=MAP(n)).fit(SOURCE, TARGET).particles_ for n in (1, 3))
    assert_close(pick(three, 0), pick(one, 0))
    assert not any(np.allclose(leaf[1], leaf[0]) or np.allclose(leaf[1], leaf[2]) for leaf in jax.tree.leaves(three))


def test_blocks_of_runs_change_nothing(x64, monkeypatch):
    runs = [make_run(seed=seed, kernel=RBFKernel())[0] for seed in range(4)]
    rates = [0.01, 0.02, 0.03, 0.04]
    for train_config in (PLAIN, PLAIN._replace(plan=((1, 1),))):
        whole = train_runs(runs, 3, rates, train_config)
        monkeypatch.setattr(steps, "BLOCK", 2)
        blocks = train_runs(runs, 3, rates, train_config._replace(chunk=3))  # another program
        monkeypatch.undo()
        assert_close(blocks.loss, whole.loss)
        for one, other in zip(jax.tree.leaves(blocks.particles), jax.tree.leaves(whole.particles), strict=True):
            assert_close(one, other)
