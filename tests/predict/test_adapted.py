"""One task is predicted as the entry of many, whatever their sizes; conditioning happens once, in chunks that fit."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprior import OutOfMemoryWarning, memory
from metaprior.predict import adapted as adapted_module
from metaprior.predict import batches as many_tasks
from metaprior.tasks.types import Ragged, ranges
from metaprior.wfem import (
    MAP,
    SVGD,
    Gaussian,
    LinearKernel,
    MLPKernel,
    MLPMean,
    Training,
    WFEMClassifier,
    WFEMRegressor,
    evidence,
    runs,
    trained,
)

SMALL = {"alpha": 0.5, "training": Training(n_steps=2), "random_state": 0}
UNTRAINED = Training(n_steps=0)
SIZES = [(0, 3), (1, 0), (3, 1), (3, 3)]  # of contexts and queries
NET = {"hidden_sizes": (4,)}
NOISE_STD = 0.2


def make_tasks(sizes, input_dim=1, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda n: rng.uniform(-2, 2, (n, input_dim))  # noqa: E731
    return [(x := draw(n), np.sin(x.sum(axis=1)) + rng.normal(0, 0.3, n), draw(q)) for n, q in sizes]


def make_labeled(sizes, seed=0, labels=("ill", "well")):
    return [(x, np.array(labels)[(y > 0).astype(int)], new) for x, y, new in make_tasks(sizes, 2, seed)]


def fit(tasks, estimator=WFEMRegressor, **arguments):
    pairs = [(x, y) for x, y, _ in tasks]
    return estimator(**{**SMALL, **arguments}).fit(pairs[:3], pairs[3:])


TRAINING = make_tasks([(6, 0), (5, 0), (6, 0), (6, 0), (5, 0)], seed=1)
LABELLED = make_labeled([(6, 0), (6, 0), (6, 0), (6, 0), (6, 0)], seed=1)


@pytest.fixture(scope="module")
def regressor():
    return fit(TRAINING, kernel="rbf", mean="linear", likelihood=Gaussian(NOISE_STD))


@pytest.fixture(scope="module")
def classifier():
    """Not trained. Its programs take seconds to compile: tests share contexts of 6 samples or none, and 3 queries."""
    return fit(LABELLED, WFEMClassifier, kernel="rbf", mean="constant", training=UNTRAINED)


def assert_as_adapt(meta, tasks, **arguments):
    means, stds = meta.predict_many(tasks, return_std=True, **arguments)
    assert len(means) == len(stds) == len(tasks)
    for (x, y, new), mean, std in zip(tasks, means, stds, strict=True):
        expected = meta.adapt(x, y).predict(new, return_std=True, **arguments)
        np.testing.assert_allclose(mean, expected[0], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(std, expected[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel": MLPKernel(**NET, n_features=2), "mean": MLPMean(**NET), "inference": SVGD(2)},
        {"kernel": LinearKernel(**NET), "mean": "linear"},
        {"kernel": "rbf", "mean": "zero", "alpha": [0.0, 0.5]},  # several members, each with a scaling of its own
        {"kernel": tinygp.kernels.Matern32(), "mean": "zero"},
        {"kernel": "linear+rbf", "encoder": "mlp", "mean": "linear"},
    ],
    ids=lambda arguments: str(type(arguments["kernel"]).__name__ if "encoder" not in arguments else "encoder"),
)
def test_every_family_predicts_as_adapt(arguments):
    meta = fit(TRAINING, **arguments, training=UNTRAINED)
    assert len(meta.model_.members) == (2 if "alpha" in arguments else 1)
    assert_as_adapt(meta, make_tasks([(3, 3), (2, 3), (3, 2)]))


CONTEXT, QUERY = st.sampled_from([0, 1, 3]), st.sampled_from([0, 3])  # few, since each is compiled


@settings(max_examples=20)
@given(sizes=st.lists(st.tuples(CONTEXT, QUERY), max_size=4), latent=st.booleans())
def test_any_sizes(regressor, sizes, latent):
    if not sizes:
        assert regressor.predict_many([]) == []
        assert regressor.predict_many([], return_std=True) == ([], [])
        return
    assert_as_adapt(regressor, make_tasks(sizes, seed=len(sizes)), latent=latent)


def test_chunks_and_pieces_change_nothing(regressor, monkeypatch):
    """More tasks than fit into the few chunks of one size, a filled last chunk, and queries in pieces."""
    tasks = make_tasks([(3 * (n % 2), n % 4 + n // 20) for n in range(23)])
    monkeypatch.setattr(many_tasks, "FEW_CHUNKS", 0)
    monkeypatch.setattr(many_tasks, "MAX_QUERIES", 2)
    monkeypatch.setattr(many_tasks, "CHUNK_BYTES", 2**12)
    assert_as_adapt(regressor, tasks)


def test_what_adapt_many_gives(regressor):
    tasks = make_tasks(SIZES)
    queries = [new for *_, new in tasks]
    y = [np.linspace(-1, 1, len(new)) for new in queries]
    adapted = regressor.adapt_many((x, y) for x, y, _ in tasks)
    assert len(adapted) == len(tasks)
    assert repr(adapted) == "AdaptedRegressors(4 tasks, 7 readings as context, dtype='float64')"
    singles = [regressor.adapt(x, y) for x, y, _ in tasks]
    assert [type(one) for one in adapted] == [type(one) for one in singles]
    found = {
        "predict": adapted.predict(queries),
        "interval": list(zip(*adapted.interval(queries, 0.8), strict=True)),
        "quantile": list(zip(*adapted.quantile(queries, [0.2, 0.7]), strict=True)),
        "log_density": adapted.log_density(queries, y),
        "predictive": [predictive.cdf(0.3) for predictive in adapted.predictive(queries)],
    }
    for i, (single, new) in enumerate(zip(singles, queries, strict=True)):
        expected = {
            "predict": single.predict(new),
            "interval": single.interval(new, 0.8),
            "quantile": single.quantile(new, [0.2, 0.7]),
            "log_density": single.log_density(new, y[i]),
            "predictive": single.predictive(new).cdf(0.3),
        }
        np.testing.assert_allclose(adapted[i].predict(new), single.predict(new), rtol=1e-12)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name][i], values, rtol=1e-9, atol=1e-9, err_msg=name)
    shared = adapted[1::-1].predict(queries[0])  # one array for all tasks
    np.testing.assert_allclose(shared[0], singles[1].predict(queries[0]), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(adapted[-1].predict(queries[0]), singles[-1].predict(queries[0]))
    with pytest.raises(IndexError):
        adapted[4]


@pytest.mark.parametrize("latent", [False, True])
def test_noise_is_in_observations_and_not_in_the_latent_function(regressor, latent):
    """In every method, of one task and of many."""
    tasks = make_tasks([(3, 3)] * 3)
    queries, y = [new for *_, new in tasks], [np.linspace(-1, 1, 3)] * 3
    many = regressor.adapt_many([(x, y) for x, y, _ in tasks])
    functions, predictives = many.predictive(queries, latent=True), many.predictive(queries, latent=latent)
    for i, (predictive, function) in enumerate(zip(predictives, functions, strict=True)):
        [given] = many[i]._posteriors.evaluate(many_tasks.marginals, np.zeros(1, int), queries[i][None])
        variance = given.variance[:, 0]
        np.testing.assert_allclose(function.variances, variance, rtol=1e-9)
        np.testing.assert_allclose(predictive.std() ** 2 - variance[0], 0 if latent else NOISE_STD**2, atol=1e-7)
        np.testing.assert_allclose(many[i].predictive(queries[i], latent=latent).std(), predictive.std(), rtol=1e-9)
    for adapted, x, observed in ((many, queries, y), (many[0], queries[0], y[0])):
        covariances = adapted.predict(x, return_cov=True, latent=latent)[1]
        found = {
            "std": adapted.predict(x, return_std=True, latent=latent)[1],
            "lower": adapted.interval(x, 0.8, latent=latent)[0],
            "quantile": adapted.quantile(x, 0.3, latent=latent),
            "density": adapted.log_density(x, observed, latent=latent),
            "covariance": np.sqrt(np.diagonal(covariances, axis1=-2, axis2=-1)),
        }
        expected = {
            "std": [each.std() for each in predictives],
            "lower": [each.interval(0.8)[0] for each in predictives],
            "quantile": [each.quantile(0.3) for each in predictives],
            "density": [each.log_density(y[0]) for each in predictives],
            "covariance": [each.std() for each in predictives],
        }
        for name, values in expected.items():
            wanted = values if adapted is many else values[0]
            np.testing.assert_allclose(found[name], wanted, rtol=1e-9, err_msg=name)


def test_labels(classifier):
    tasks = [*make_labeled([(6, 3), (6, 3)], labels=("ill", "well")), *make_labeled([(0, 3)])]
    queries = [new for *_, new in tasks]
    adapted = classifier.adapt_many([(x, y) for x, y, _ in tasks])
    assert repr(adapted) == "AdaptedClassifiers(3 tasks, 12 labels as context, dtype='float64')"
    predicted = classifier.predict_many(tasks)
    for i, (x, y, new) in enumerate(tasks):
        single = classifier.adapt(x, y)
        assert adapted.classes_[i].tolist() == adapted[i].classes_.tolist() == single.classes_.tolist()
        np.testing.assert_array_equal(predicted[i], single.predict(new))
        np.testing.assert_array_equal(adapted[i].predict(new), single.predict(new))
        for name in ("predict_proba", "predict_log_proba", "decision_function"):
            found, expected = getattr(adapted, name)(queries)[i], getattr(single, name)(new)
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    assert len(adapted[1:].predict(queries[1:])) == 2
    assert classifier.predict_many([]) == []


def test_single_precision_is_close_and_refused_where_it_would_not_be(regressor, classifier):
    tasks = make_tasks([(3, 3)] * 3)
    means, stds = regressor.predict_many(tasks, return_std=True)
    coarse_means, coarse_stds = regressor.predict_many(tasks, return_std=True, dtype="float32")
    np.testing.assert_allclose(coarse_means, means, atol=1e-4)
    np.testing.assert_allclose(coarse_stds, stds, atol=1e-4)
    assert np.max(np.abs(np.subtract(coarse_means, means))) > 0  # it was used
    assert coarse_means[0].dtype == np.float64
    labeled = make_labeled([(6, 3)] * 3)
    contexts, queries = [(x, y) for x, y, _ in labeled], [new for *_, new in labeled]
    fine, coarse = (classifier.adapt_many(contexts, dtype=dtype).predict_proba(queries) for dtype in FLOATS)
    np.testing.assert_allclose(coarse, fine, atol=1e-4)
    exact = fit(TRAINING, kernel="rbf", mean="linear", likelihood=Gaussian(1e-3), training=UNTRAINED)
    with pytest.raises(ValueError, match=r"dtype='float32' is too coarse for noise of 0\.00\d of the spread"):
        exact.predict_many(tasks, dtype="float32")
    with pytest.raises(ValueError, match="contexts of over 100 samples"):
        classifier.adapt_many([task[:2] for task in make_labeled([(101, 0)])], dtype="float32")
    with pytest.raises(ValueError, match="dtype must be one of float64, float32; got 'half'"):
        regressor.predict_many(tasks, dtype="half")


FLOATS = ("float64", "float32")
X, Y = np.zeros((2, 1)), np.zeros(2)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("text", "tasks must be a sequence of"),
        (np.zeros((3, 2)), "tasks must be a sequence of"),
        ([(X, Y, X), (X, Y)], r"tasks\[1\] must be \(X_context, y_context, X_query\); got 2 parts"),
        ([(X, Y, X), (X, Y[:1], X)], r"tasks\[1\] context: X and y must have the same number of samples"),
        ([(X, Y, X), (X, [0.0, np.nan], X)], r"tasks\[1\] context: y must be finite; 1 value is NaN"),
        ([(X, Y, X), (X, np.array([0.0, np.inf]), X)], r"tasks\[1\] context: y must be finite"),
        ([(X, Y, X), (X * np.nan, Y, X)], r"tasks\[1\] context: X must be finite; 2 values"),
        ([(X, Y, X), (X, Y, X + np.inf)], r"tasks\[1\] query: X must be finite"),
        ([(X, Y, X), (X, Y, np.zeros((2, 3)))], r"tasks\[1\] query: X must have 1 column, .*; got 3"),
        ([(X, Y, X), (X, ["a", "b"], X)], r"tasks\[1\] context: y must be an array of numbers"),
        ([(X, Y, X), (X, Y, X + 1e200)], "standard deviations from the meta-training inputs"),
    ],
)
def test_what_is_wrong_is_named(regressor, tasks, message):
    with pytest.raises(ValueError, match=message):
        regressor.predict_many(tasks)


def test_wrong_queries_are_named(regressor):
    adapted = regressor.adapt_many([(X, Y), ([0.0, 1.0], [[1.0], [2.0]])])  # of any form that `adapt` takes
    with pytest.raises(ValueError, match=r"each of the 2 tasks, or one array for all of them; got 1\."):
        adapted.predict([X])
    with pytest.raises(ValueError, match=r"X must be a list with an array for each of the 2 tasks, .*; got int"):
        adapted.predict(3)
    with pytest.raises(ValueError, match=r"X\[1\]: X must be finite"):
        adapted.predict([X, X * np.nan])
    with pytest.raises(ValueError, match="X for all tasks: X must have 1 column"):
        adapted.predict(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="X for all tasks"):
        adapted.predict(np.zeros((3, 4, 1)))  # queries of three tasks, stacked, for two
    with pytest.raises(ValueError, match=r"log_density\[1\]: X and y must have the same number"):
        adapted.log_density([X, X], [Y, Y[:1]])
    with pytest.raises(ValueError, match=r"contexts\[1\] must be \(X, y\)"):
        regressor.adapt_many([(X, Y), X])
    with pytest.raises(ValueError, match="coverage must lie strictly between 0 and 1"):
        adapted.interval([X, X], 1.5)


def out_of_memory(size, most):
    if size > most:
        raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: Out of memory allocating {size} bytes.")


def test_a_chunk_that_does_not_fit_is_halved_with_a_note(regressor, monkeypatch):
    monkeypatch.setattr(adapted_module, "warn_if_implausible", lambda *_: None)  # which looks at the prior first
    tasks = make_tasks([(3, 3)] * 16)
    expected, tried = regressor.predict_many(tasks), []
    marginals = trained.marginals

    def short(particles, rest, posteriors, x):
        tried.append(len(x))
        out_of_memory(tried[-1], 5)
        return marginals(particles, rest, posteriors, x)

    monkeypatch.setattr(trained, "marginals", short)
    with pytest.warns(OutOfMemoryWarning, match="with 16 of the new tasks at once: tried again with 8") as noted:
        found = regressor.predict_many(tasks)
    assert len(noted) == 1
    assert tried == [16, 8, 4, 4, 4, 4]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    monkeypatch.setattr(trained, "marginals", lambda *_: out_of_memory(1, 0))
    with (
        pytest.warns(OutOfMemoryWarning),
        pytest.raises(MemoryError, match=r"one of the new tasks at a time\. Adapt to"),
    ):
        regressor.predict_many(tasks)


def test_runs_that_do_not_fit_are_halved_too(regressor, monkeypatch):
    """Those of a search and those of the members of a fit."""
    expected = fit(TRAINING, kernel="rbf", mean="linear", alpha=[0.0, 0.5])
    train, tried = runs.train, []

    def short(problem, particles, keys, *arguments, **keywords):
        tried.append(len(keys))
        out_of_memory(tried[-1], 1)
        return train(problem, particles, keys, *arguments, **keywords)

    monkeypatch.setattr("metaprior.wfem.loop.train", short)
    with pytest.warns(OutOfMemoryWarning, match="of the runs"):
        found = fit(TRAINING, kernel="rbf", mean="linear", alpha=[0.0, 0.5])
    assert max(tried) > 1
    assert tried.count(1) > 2
    np.testing.assert_allclose(found.alpha_path_.score, expected.alpha_path_.score, rtol=1e-4)


def test_parts_of_memory():
    assert list(memory.in_chunks(lambda part, at_once: (list(part), at_once), range(5), 2, "", "")) == [
        ([0, 1], 2),
        ([2, 3], 2),
        ([4], 2),
    ]

    def allocate(part, _):
        """More than any address space for two, and little for one."""
        return jnp.zeros(2 ** (50 if len(part) > 1 else 5), jnp.int8).sum()

    with pytest.warns(OutOfMemoryWarning, match="with 3 of the arrays at once: tried again with 2"):
        assert len(list(memory.in_chunks(allocate, range(3), 3, "arrays", ""))) == 3
    with pytest.raises(ZeroDivisionError):
        list(memory.in_chunks(lambda part, _: 1 / 0, range(3), 3, "arrays", ""))
    assert memory.is_out_of_memory(MemoryError("Unable to allocate"))
    assert not memory.is_out_of_memory(ValueError("RESOURCE_EXHAUSTED"))


@given(sizes=st.lists(st.integers(0, 4), max_size=6), seed=st.integers(0, 99))
def test_ragged_rows(sizes, seed):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(n, 2)) for n in sizes]
    ragged = Ragged.of(arrays, (2,))
    assert ragged.n_rows == sum(sizes)
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(ragged[i], array)
    order = rng.permutation(len(sizes))
    for i, array in zip(order, ragged.take(order).split(ragged.take(order).rows.T), strict=True):
        np.testing.assert_array_equal(array.T, arrays[i])
    expected = [start + step for start, n in zip([7, 0, 3], [2, 0, 3], strict=True) for step in range(n)]
    assert ranges(np.array([7, 0, 3]), np.array([2, 0, 3])).tolist() == expected


def test_stacked_queries_are_those_of_each_task(regressor):
    contexts = [(np.zeros((2, 1)) + i, np.ones(2)) for i in range(3)]
    queries = np.arange(6.0).reshape(3, 2, 1)
    adapted = regressor.adapt_many(contexts)
    for one, other in zip(adapted.predict(queries), adapted.predict(list(queries)), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(IndexError, match="there are 3 tasks; got the index 3"):
        adapted[3]


def test_single_precision_refuses_what_it_cannot_hold(regressor):
    far = [(np.zeros((1, 1)), np.zeros(1), np.full((1, 1), 1e60))]
    with pytest.raises(ValueError, match="'float32' cannot resolve values"):
        regressor.predict_many(far, dtype="float32")


def contradicted(tasks):
    """Every input twice, with outputs that differ."""
    twice = lambda y: np.concatenate([y, y + 0.5]) if y.dtype == float else np.concatenate([y, y[::-1]])  # noqa: E731
    return [(np.concatenate([x, x]), twice(y), new) for x, y, new in tasks]


def predictions(task, new):
    if hasattr(task, "classes_"):
        return [task.predict_proba(new), task.predict_log_proba(new), task.decision_function(new)]
    y = np.zeros(len(new))
    marginal = [*task.predict(new, return_std=True), *task.interval(new), task.log_density(new, y)]
    return [*marginal, *task.predict(new, return_cov=True), task.sample(new, 2, random_state=0)]


RAGGED = [(3, 3), (0, 3), (3, 2)]


@pytest.mark.filterwarnings("ignore::metaprior.ImplausibleContextWarning")  # they are
@pytest.mark.parametrize("noise_std", [0.1, 1e-7])
def test_one_task_is_exactly_the_entry_of_many(noise_std):
    """To the last digit, even where the noise is too small for inputs that contradict each other."""
    settings = {"inference": MAP(2), "training": Training(n_steps=0, dtype="float64")}
    meta = fit(TRAINING, kernel="linear+rbf", mean="linear", likelihood=Gaussian(noise_std), **settings)
    tasks = contradicted(make_tasks(RAGGED))
    many = meta.adapt_many([(x, y) for x, y, _ in tasks])
    together = many.predict([new for *_, new in tasks], return_std=True)
    for i, (x, y, new) in enumerate(tasks):
        expected = predictions(meta.adapt(x, y), new)
        for entry in (meta.adapt_many([(x, y)])[0], many[i], many[i : i + 1][0]):
            for found, wanted in zip(predictions(entry, new), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
        for found, wanted in zip(meta.predict_many([(x, y, new)], return_std=True), expected[:2], strict=True):
            np.testing.assert_array_equal(found[0], wanted)
        if noise_std == 0.1:  # padded otherwise, and so rounded otherwise: noise of 1e-7 would make that visible
            for found, wanted in zip(together, expected[:2], strict=True):
                np.testing.assert_allclose(found[i], wanted, rtol=1e-12, atol=1e-12)


def test_one_labeled_task_is_exactly_the_entry_of_many(classifier):
    tasks = contradicted(make_labeled(RAGGED))
    many = classifier.adapt_many([(x, y) for x, y, _ in tasks])
    together = many.predict_proba([new for *_, new in tasks])
    for i, (x, y, new) in enumerate(tasks):
        expected = predictions(classifier.adapt(x, y), new)
        for entry in (classifier.adapt_many([(x, y)])[0], many[i], many[i : i + 1][0]):
            for found, wanted in zip(predictions(entry, new), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(classifier.adapt_many([(x, y)]).predict_proba([new])[0], expected[0])
        np.testing.assert_allclose(together[i], expected[0], rtol=1e-12, atol=1e-12)


@pytest.fixture
def conditioned(monkeypatch):
    """Numbers of tasks of the calls that condition."""
    calls, condition = [], trained.condition
    monkeypatch.setattr(
        trained,
        "condition",
        lambda particles, rest, *task: calls.append(len(task[0])) or condition(particles, rest, *task),
    )
    return calls


def test_conditioning_happens_once(regressor, classifier, conditioned, monkeypatch):
    monkeypatch.setattr(adapted_module, "warn_if_implausible", lambda *_: None)  # which looks at the prior first
    [(x, y, new)] = make_tasks([(3, 4)])
    task = regressor.adapt(x, y)
    assert conditioned == []  # not before the first prediction
    for queries in (new, new[:1], np.concatenate([new, new])):
        predictions(task, queries)
    assert conditioned == [1]
    [(x, y, new)] = make_labeled([(6, 3)])
    predictions(classifier.adapt(x, y), new)
    assert conditioned == [1, 1]
    tasks = make_tasks([(3, 4), (2, 3), (3, 2)])
    many = regressor.adapt_many([(x, y) for x, y, _ in tasks])
    for n in (1, 3):
        many.interval([new[:n] for *_, new in tasks])
    many.sample(new[:, :1])
    assert conditioned == [1, 1, 3]


@pytest.mark.parametrize("kept", [0, 1500, 2**29], ids=["nothing kept", "something kept", "all kept"])
def test_kept_posteriors_predict_as_new_ones(regressor, conditioned, monkeypatch, kept):
    """Whatever the chunks of a later prediction; those that do not fit are computed again."""
    tasks = make_tasks([(3 * (n % 2), 1 + n % 3) for n in range(11)])
    monkeypatch.setattr(many_tasks, "KEPT_BYTES", kept)
    monkeypatch.setattr(many_tasks, "CHUNK_BYTES", 2**13)
    many = regressor.adapt_many([(x, y) for x, y, _ in tasks])
    first = many.predict([new for *_, new in tasks])
    n_calls = len(conditioned)
    assert n_calls > 2
    for repeat in (1, 5, 1):
        again = many.predict([np.repeat(new, repeat, axis=0) for *_, new in tasks])
        for found, expected in zip(again, first, strict=True):
            np.testing.assert_allclose(found, np.repeat(expected, repeat), rtol=1e-10, atol=1e-10)
    assert (len(conditioned) == n_calls) == (kept == 2**29)
    assert many._posteriors._n_bytes <= kept


def test_contexts_of_one_padded_size_share_a_program(regressor, monkeypatch):
    traced, points_of_tasks = [], evidence.points_of_tasks
    monkeypatch.setattr(evidence, "points_of_tasks", lambda *given: traced.append(1) or points_of_tasks(*given))
    tasks = make_tasks([(150, 13), (160, 14), (192, 15), (129, 16)])  # more than SMALL, which all fewer share
    [(x, y, new), *others] = tasks
    regressor.adapt(x, y).predict(new)
    assert traced
    traced.clear()
    for x, y, new in others:
        regressor.adapt(x, y).predict(new)
    assert not traced


def test_pickled_tasks_keep_their_posteriors_and_precision(regressor, conditioned):
    tasks = make_tasks(SIZES)
    many, queries = regressor.adapt_many([(x, y) for x, y, _ in tasks]), [new for *_, new in tasks]
    expected = many.predict(queries)
    copied = pickle.loads(pickle.dumps(many))
    conditioned.clear()
    for found, wanted in zip(copied.predict(queries), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert conditioned == []


def test_covariances_and_draws_of_many_tasks(regressor, classifier):
    tasks = make_tasks(SIZES)
    queries = [new for *_, new in tasks]
    many = regressor.adapt_many([(x, y) for x, y, _ in tasks])
    means, covariances = many.predict(queries, return_cov=True)
    draws = many.sample(queries, 3, random_state=0)
    for i, (x, y, new) in enumerate(tasks):
        mean, covariance = regressor.adapt(x, y).predict(new, return_cov=True)
        np.testing.assert_allclose(means[i], mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(covariances[i], covariance, rtol=1e-12, atol=1e-12)
        assert draws[i].shape == (3, len(new))
    np.testing.assert_allclose(draws[0], many[0].sample(queries[0], 3, random_state=0), rtol=1e-9)
    labeled = make_labeled([(6, 3), (6, 2), (6, 3)])
    many = classifier.adapt_many([(x, y) for x, y, _ in labeled])
    drawn = many.predict_proba([new for *_, new in labeled], n_samples=4000, random_state=0)
    for entry, (_, _, new), found in zip(many, labeled, drawn, strict=True):
        np.testing.assert_allclose(found, entry.predict_proba(new), atol=4.0 * 0.5 / np.sqrt(4000))
