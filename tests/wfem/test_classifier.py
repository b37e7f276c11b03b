"""`WFEMClassifier`'s contract: labels, probabilities against outside computations, scikit-learn habits, files."""

import copy
import pickle

import jax
import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from metaprior import ExtrapolationWarning, SeenTasksWarning, files, load
from metaprior.files import InvalidFile
from metaprior.predict.batches import marginals
from metaprior.wfem import MAP, SVGD, HyperPrior, MLPEncoder, RBFKernel, Training, WFEMClassifier


def make_tasks(seed, sizes, names=(0, 1)):
    """Two inputs; the first tells the classes apart, the other way round in every second task."""
    rng = np.random.default_rng(seed)
    tasks = []
    for i, n in enumerate(sizes):
        y = np.arange(n) % 2
        side = (2 * y - 1) * (1 if i % 2 == 0 else -1)
        x = np.column_stack([side + 0.5 * rng.normal(size=n), 3.0 * rng.normal(size=n)])
        tasks.append((x, np.array(names)[y]))
    return tasks


def make_tests(seed, sizes, n_query=7, names=(0, 1)):
    whole = make_tasks(seed, [n + n_query for n in sizes], names)
    return [(x[:n], y[:n], x[n:], y[n:]) for n, (x, y) in zip(sizes, whole, strict=True)]


# Few shapes, because every shape is compiled: contexts are padded to 6 or 1 samples, queries to 8.
SOURCE, TARGET = make_tasks(0, [6, 5, 6]), make_tasks(1, [6, 5])
TESTS = make_tests(2, [5, 6, 1, 6])
X_CONTEXT, Y_CONTEXT, X_QUERY, Y_QUERY = TESTS[1]
PRIOR = {"kernel": "linear+rbf", "mean": "linear", "temperature": "bayes", "random_state": 0}
UNTRAINED = {**PRIOR, "alpha": "pooled", "inference": SVGD(n_particles=3), "training": Training(n_steps=0)}
QUICK = {**UNTRAINED, "training": Training(n_steps=20)}


@pytest.fixture(scope="module")
def meta():
    return WFEMClassifier(**{**QUICK, "alpha": 0.3}).fit(SOURCE, TARGET)


@pytest.fixture(scope="module")
def own_labels():
    """A prior of tasks with labels of their own, not trained."""
    own = [[(x, np.where(y == 0, f"b{i}", f"a{i}")) for i, (x, y) in enumerate(tasks)] for tasks in (SOURCE, TARGET)]
    return WFEMClassifier(**UNTRAINED).fit(*own)


def test_tasks_of_the_fit_are_known_by_their_labels(meta, own_labels):
    flipped = [(x, 1 - y) for x, y in SOURCE]
    assert meta.fitted_on([*SOURCE, *TARGET]).all()
    assert not meta.fitted_on([*flipped, *make_tasks(3, [6])]).any()
    assert own_labels.fitted_on([(x, np.where(y == 0, "b", "a")) for x, y in SOURCE]).all()
    with pytest.warns(SeenTasksWarning, match="^1 of 5 test tasks"):
        meta._read_tests(
            [*TESTS, (SOURCE[0][0][:3], SOURCE[0][1][:3], SOURCE[0][0][3:], SOURCE[0][1][3:])], "test_tasks"
        )
    with pytest.warns(ExtrapolationWarning, match=r"at 1 of 2 inputs: X\[:, 1\] is 1000"):
        meta.adapt(X_CONTEXT, Y_CONTEXT)._queries([[0.0, 0.0], [0.0, 1000.0]])  # as every prediction reads them


def test_the_contract(meta):
    task = meta.adapt(X_CONTEXT, Y_CONTEXT)
    probabilities, odds = task.predict_proba(X_QUERY), task.decision_function(X_QUERY)
    assert probabilities.shape == (7, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(odds, np.log(probabilities[:, 1] / probabilities[:, 0]), rtol=1e-9)
    np.testing.assert_array_equal(task.predict(X_QUERY), task.classes_[(odds > 0).astype(int)])
    assert task.predict_proba(np.zeros((0, 2))).shape == (0, 2)
    assert meta.classes_.tolist() == task.classes_.tolist() == [0, 1]
    assert (meta.alpha_, meta.n_features_in_, meta.dtype_) == (0.3, 2, "float32")
    assert meta.loss_trace_.shape == (20,)
    assert {len(leaf) for leaf in jax.tree.leaves(meta.particles_)} == {3}


def test_evaluate_against_scikit_learn_and_one_task_at_a_time(meta):
    report = meta.evaluate(TESTS)
    assert report.n_tasks == 4
    for i, (x, y, x_query, y_query) in enumerate(TESTS):
        p = meta.adapt(x, y).predict_proba(x_query)[:, 1]
        expected = {
            "accuracy": accuracy_score(y_query, p > 0.5),
            "probability_accuracy": 1.0 - np.mean(np.abs(p - y_query)),
            "log_loss": log_loss(y_query, p, labels=[0, 1]),
            "brier": brier_score_loss(y_query, p),
        }
        for name, value in expected.items():
            assert report.per_task[name][i] == pytest.approx(value, rel=1e-9), name
    for name, values in report.per_task.items():
        assert report[name] == pytest.approx(np.mean(values))
        assert report[f"{name}_se"] == pytest.approx(np.std(values, ddof=1) / 2.0)
    assert 0.0 <= report.calibration_error <= 0.5


def test_fixed_kernel_equals_scikit_learn():
    plain = {"mean": "zero", "kernel": RBFKernel(1.3, 2.0), "training": Training(n_steps=0, standardize=False)}
    task = WFEMClassifier(**plain).fit(SOURCE, TARGET).adapt(X_CONTEXT, Y_CONTEXT)
    kernel = ConstantKernel(2.0, "fixed") * RBF(1.3, "fixed")
    reference = GaussianProcessClassifier(kernel, optimizer=None, max_iter_predict=1000).fit(X_CONTEXT, Y_CONTEXT)
    ours, theirs = task.predict_proba(X_QUERY), reference.predict_proba(X_QUERY)
    np.testing.assert_allclose(ours, theirs, atol=0.01)  # its integral is an approximation
    np.testing.assert_array_equal(task.predict(X_QUERY), reference.predict(X_QUERY))
    one, sampled = task.predict_proba(X_QUERY), task.predict_proba(X_QUERY, n_samples=40_000, random_state=1)
    np.testing.assert_allclose(sampled, one, atol=4.0 * 0.5 / np.sqrt(40_000))
    np.testing.assert_array_equal(sampled, task.predict_proba(X_QUERY, n_samples=40_000, random_state=1))


def test_probabilities_are_averages_over_particles_of_integrals_over_the_latent_function(meta):
    task = meta.adapt(X_CONTEXT, Y_CONTEXT)
    [latent] = task._posteriors.evaluate(marginals, np.zeros(1, int), X_QUERY[None])
    means, variances = latent.mean[:, 0], latent.variance[:, 0]
    for j in range(3):
        integrals = []
        for m, s in zip(means[:, j], np.sqrt(variances[:, j]), strict=True):
            integrand = lambda t, m=m, s=s: expit(t) * stats.norm.pdf(t, m, s)  # noqa: E731
            integrals.append(integrate.quad(integrand, m - 12 * s, m + 12 * s, points=[0.0, m], limit=500)[0])
        assert task.predict_proba(X_QUERY)[j, 1] == pytest.approx(np.mean(integrals), abs=1e-6)


def draw_tests(draw, n_tasks):
    return [(x[:4], y[:4], x[4:], y[4:]) for x, y in (draw(24) for _ in range(n_tasks))]


def assert_clearly_better(learned, plain, errors):
    differences = learned.per_task.accuracy - plain.per_task.accuracy
    assert differences.mean() > errors * differences.std(ddof=1) / np.sqrt(len(differences)) > 0.0
    assert learned.log_loss < plain.log_loss


def test_it_learns_what_tells_classes_apart():
    """Of six inputs one matters and five are loud: tasks of the source tell which, a context of four does not."""
    rng = np.random.default_rng(0)

    def draw(n):
        y = np.arange(n) % 2
        side = (2 * y - 1) * rng.choice([-1, 1]) + 0.4 * rng.normal(size=n)
        return np.column_stack([side, 4 * rng.normal(size=(n, 5))]), y

    source, tests = [draw(10) for _ in range(20)], draw_tests(draw, 48)
    given = {**PRIOR, "alpha": "pooled"}
    learned = WFEMClassifier(**given, training=Training(n_steps=50)).fit(source)
    plain = WFEMClassifier(**given, training=Training(n_steps=0, standardize=True)).fit(source)
    assert learned.loss_trace_[-1] < learned.loss_trace_[0]
    assert_clearly_better(learned.evaluate(tests), plain.evaluate(tests), errors=5.0)


def test_a_linear_mean_learns_a_rule_that_all_tasks_share():
    rng = np.random.default_rng(0)

    def draw(n):
        x = rng.normal(size=(n, 6))
        return x, np.where(3.0 * (x[:, 0] - x[:, 1]) + rng.logistic(size=n) > 0, "yes", "no")

    tasks, tests = [draw(10) for _ in range(20)], draw_tests(draw, 48)
    linear, constant = (
        WFEMClassifier(**{**PRIOR, "mean": mean}, alpha="pooled", training=Training(n_steps=300))
        .fit(tasks)
        .evaluate(tests)
        for mean in ("linear", "constant")
    )
    assert_clearly_better(linear, constant, errors=4.0)


def test_pickled_tasks_keep_their_precision(meta):
    task = meta.adapt(X_CONTEXT, Y_CONTEXT)
    for copied in (pickle.loads(pickle.dumps(task)), copy.deepcopy(task)):
        np.testing.assert_array_equal(copied.predict_proba(X_QUERY), task.predict_proba(X_QUERY))
    np.testing.assert_allclose(np.exp(task.predict_log_proba(X_QUERY)), task.predict_proba(X_QUERY), rtol=1e-9)
    assert "classes_=[0, 1]" in repr(task)


def test_pooling_weighs_tasks_alike():
    fits = [WFEMClassifier(**{**QUICK, "alpha": alpha}).fit(SOURCE, TARGET) for alpha in (0.6, "pooled", 0.1)]
    ours, pooled, other = (fit.adapt(X_CONTEXT, Y_CONTEXT).predict_proba(X_QUERY) for fit in fits)
    np.testing.assert_array_equal(ours, pooled)
    assert np.abs(ours - other).max() > 1e-3


def test_alpha_zero_is_target_only_whatever_the_source():
    """Not trained: that tasks of no weight leave the loss alone is tested in test_families.py and test_objective.py."""
    strange = [(np.zeros((130, 2)), ["owl"] * 130), (X_CONTEXT, list("abcdef"))]
    settings = {**UNTRAINED, "alpha": 0.0}
    both = WFEMClassifier(**settings).fit(strange, TARGET)
    alone = WFEMClassifier(**settings).fit(target_tasks=TARGET)
    assert (both.dtype_, both.classes_.tolist()) == (alone.dtype_, alone.classes_.tolist()) == ("float32", [0, 1])
    ours, theirs = (m.adapt(X_CONTEXT, Y_CONTEXT).predict_proba(X_QUERY) for m in (both, alone))
    np.testing.assert_array_equal(ours, theirs)


def test_neither_label_is_favored_by_chance(own_labels):
    """Without a context and with a zero mean nothing tells classes apart: accuracy is one half, whatever the labels."""
    x = np.random.default_rng(0).normal(size=(8, 2))
    assert own_labels.evaluate([([], [], x, [0] * 6 + [1] * 2)]).accuracy == 0.5


@pytest.mark.parametrize("mean", ["constant", "linear", "zero"])
def test_the_order_of_labels_of_their_own_teaches_nothing(own_labels, mean):
    rng = np.random.default_rng(0)
    tasks = [(rng.normal(size=(10, 2)), [f"b{i}"] * 8 + [f"a{i}"] * 2) for i in range(6)]
    meta = WFEMClassifier(**{**UNTRAINED, "mean": mean}).fit(tasks)
    assert jax.tree.structure(meta.model_.members[0].rest) == jax.tree.structure(own_labels.model_.members[0].rest)
    np.testing.assert_allclose(meta.adapt([], []).predict_proba(X_QUERY), 0.5, atol=1e-12)
    first, second = (meta.adapt(X_CONTEXT[:1], ["m"], classes=("m", other)) for other in "az")
    ours = first.predict_proba(X_QUERY)[:, list(first.classes_).index("m")]
    np.testing.assert_allclose(ours, second.predict_proba(X_QUERY)[:, 0], rtol=1e-9)
    assert np.abs(ours - 0.5).max() > 0.01


@pytest.mark.parametrize("names", [("ill", "well"), (False, True), (-1, 1), (2.0, 5.0)], ids=str)
def test_labels_come_back_as_they_were(meta, names):
    tests = make_tests(2, [5, 6, 1, 6], names=names)
    named = clone(meta).fit(make_tasks(0, [6, 5, 6], names), make_tasks(1, [6, 5], names))
    assert named.classes_.tolist() == list(names)
    predicted = named.adapt(*tests[1][:2]).predict(X_QUERY)
    assert set(predicted.tolist()) == set(names)
    assert predicted.dtype.kind == np.array(names).dtype.kind
    np.testing.assert_array_equal(predicted == names[1], meta.adapt(X_CONTEXT, Y_CONTEXT).predict(X_QUERY) == 1)
    assert named.evaluate(tests).accuracy == meta.evaluate(TESTS).accuracy > 0.5


def test_tasks_with_labels_of_their_own(own_labels, tmp_path):
    assert own_labels.classes_ is None
    assert own_labels.adapt(X_CONTEXT, np.where(Y_CONTEXT == 0, "owl", "wren")).classes_.tolist() == ["owl", "wren"]
    assert own_labels.adapt(X_CONTEXT, Y_CONTEXT).classes_.tolist() == [0, 1]
    own_labels.save(tmp_path / "own.safetensors")
    assert load(tmp_path / "own.safetensors").classes_ is None


@pytest.mark.parametrize("kept", [0, 1])
def test_a_context_of_one_class_leans_to_it_nearby_and_less_far_away(meta, kept):
    [(x, y)] = make_tasks(2, [12])
    x, y = x[y == kept], y[y == kept]
    task = meta.adapt(x, y)
    other_side = x * np.array([-1.0, 1.0])
    near, far = task.predict_proba(x)[:, kept].mean(), task.predict_proba(other_side)[:, kept].mean()
    assert 0.5 < near < 1.0
    assert far < near
    named = meta.adapt(x, ["finch"] * len(x), classes=("finch", "wren"))
    np.testing.assert_allclose(named.predict_proba(x)[:, 0].mean(), near, atol=0.1)
    with pytest.raises(ValueError, match="y has 'finch', but all meta-training tasks have the labels 0, 1"):
        meta.adapt(x, ["finch"] * len(x))


def test_an_empty_context_predicts_from_the_prior(meta):
    np.testing.assert_allclose(meta.adapt([], []).predict_proba(X_QUERY), 0.5, atol=0.1)
    assert np.isfinite(meta.evaluate([([], [], X_QUERY, Y_QUERY)]).log_loss)


def test_meta_training_tasks_of_one_class_or_one_sample_are_fine_where_labels_are_shared():
    lonely = [(X_CONTEXT[:1], [1]), (X_CONTEXT, np.zeros(6, int)), (X_CONTEXT, Y_CONTEXT)]
    meta = WFEMClassifier(**QUICK).fit(lonely)
    assert np.isfinite(meta.loss_trace_).all()
    assert np.isfinite(meta.adapt(X_CONTEXT, Y_CONTEXT).decision_function(X_QUERY)).all()


def assert_loaded_as_saved(meta, path):
    meta.save(path)
    loaded = load(path)
    assert isinstance(loaded, WFEMClassifier)
    assert loaded.classes_.tolist() == [0, 1]
    assert jax.tree.structure(loaded.model_) == jax.tree.structure(meta.model_)
    for after, before in zip(jax.tree.leaves(loaded.model_), jax.tree.leaves(meta.model_), strict=True):
        np.testing.assert_array_equal(after, before, strict=hasattr(before, "dtype"))
    assert clone(loaded).get_params().keys() == meta.get_params().keys()
    return loaded


def test_a_saved_prior_predicts_as_before(meta, tmp_path):
    loaded = assert_loaded_as_saved(meta, tmp_path / "prior.safetensors")
    before, after = (m.adapt(X_CONTEXT, Y_CONTEXT).predict_proba(X_QUERY) for m in (meta, loaded))
    np.testing.assert_array_equal(before, after, strict=True)


@pytest.mark.parametrize(
    "arguments",
    [
        {**PRIOR, "inference": MAP(n_particles=2)},
        {"training": Training(n_steps=0, standardize=True, batch_size=3)},
        {
            **PRIOR,
            "encoder": MLPEncoder((4,), residual=True),
            "hyperprior": HyperPrior(std={"weights": 0.1}),
            "training": Training(n_steps=0, dtype="float64"),
        },
        {"kernel": "rbf", "mean": "zero", "training": Training(n_steps=0, standardize=False, optimizer="sgd")},
        {"kernel": "linear", "mean": "linear", "temperature": "paper", "hyperprior": HyperPrior(mean="initial")},
    ],
    ids=["ensemble", "paper", "residual encoder", "rbf", "linear"],
)
def test_saved_priors_are_loaded_bit_for_bit(arguments, tmp_path):
    given = {"alpha": 0.3, "training": Training(n_steps=0), "random_state": 0}
    meta = WFEMClassifier(**{**given, **arguments}).fit(SOURCE, TARGET)
    assert_loaded_as_saved(meta, tmp_path / "prior.safetensors")


def test_a_damaged_file_is_refused(tmp_path, meta):
    import json

    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "prior.safetensors"
    meta.save(path)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    header = json.loads(metadata["header"])
    header["fitted"]["classes_"] = [0, 1, 2]
    words, tensors = json.dumps(header), load_file(path)
    save_file(tensors, path, metadata | {"header": words, "sha256": files._digest(words, tensors)})
    with pytest.raises(InvalidFile, match="classes_ must be two classes"):
        load(path)


def test_validation_tasks_stop_early_and_are_scored_by_log_loss(meta):
    meta = clone(meta).set_params(training=Training(n_steps=300))
    meta.fit(SOURCE, TARGET, validation_tasks=TESTS, patience=None)
    assert meta.validation_trace_.shape == (3,)
    assert meta.best_step_ == 100 * (1 + int(np.argmin(meta.validation_trace_)))
    assert meta.validation_trace_.min() == pytest.approx(meta.evaluate(TESTS).log_loss, rel=1e-4)


def test_images_are_flattened(meta):
    """Images of two rows and one column, which compile nothing new; those of three axes are read alike."""
    images = [[(x.reshape(-1, 2, 1), y) for x, y in tasks] for tasks in (SOURCE, TARGET)]
    as_images, query = clone(meta).fit(*images), X_QUERY.reshape(-1, 2, 1)
    expected = meta.adapt(X_CONTEXT, Y_CONTEXT).predict_proba(X_QUERY)
    np.testing.assert_array_equal(as_images.adapt(X_CONTEXT, Y_CONTEXT).predict_proba(query), expected)
    large = np.random.default_rng(0).normal(size=(6, 3, 4, 2))
    fits = [WFEMClassifier(**UNTRAINED).fit([(x, Y_CONTEXT)]) for x in (large, large.reshape(6, 24))]
    np.testing.assert_array_equal(*(fit.model_.members[0].scaling.x_map for fit in fits))


BAD = [
    (lambda m: m.adapt(X_CONTEXT, [0, 1, 2, 0, 1, 2]), ["adapt", "labels 0, 1", "0, 1, 2"]),
    (lambda m: m.adapt(X_CONTEXT, Y_CONTEXT[:3]), ["same number of samples", "6", "3"]),
    (lambda m: m.adapt(X_CONTEXT[:, :1], Y_CONTEXT), ["2 columns", "got 1"]),
    (lambda m: m.adapt(X_CONTEXT * np.nan, Y_CONTEXT), ["X must be finite"]),
    (lambda m: m.adapt(X_CONTEXT, Y_CONTEXT).predict_proba(X_QUERY * 1e300), ["standard deviations", "units"]),
    (lambda m: m.adapt(X_CONTEXT * 1e200, Y_CONTEXT), ["standard deviations", "units"]),
    (lambda m: m.adapt(X_CONTEXT, Y_CONTEXT + 1), ["y has 1, 2", "labels 0, 1"]),
    (lambda m: m.adapt(X_CONTEXT, Y_CONTEXT, classes=["a", "b"]), ["label 0", "classes"]),
    (lambda m: m.adapt(X_CONTEXT, Y_CONTEXT).predict_proba(X_QUERY, n_samples=0), ["n_samples", "at least 1"]),
    (lambda m: m.adapt(X_CONTEXT, Y_CONTEXT).predict(np.zeros((2, 3, 4))), ["2 columns", "12", "(3, 4)"]),
    (lambda m: m.evaluate([(X_CONTEXT, Y_CONTEXT, X_QUERY, [7] * 7)]), ["test_tasks[0]", "labels 0, 1"]),
    (lambda m: m.evaluate([]), ["test_tasks is empty"]),
    (lambda m: WFEMClassifier().fit([(X_CONTEXT, ["a"] * 6)], TARGET), ["source_tasks[0]", "one label only"]),
    (lambda m: WFEMClassifier(alpha=1.0).fit([(X_CONTEXT, [1] * 6)]), ["two or more labels", "every task"]),
    (
        lambda m: WFEMClassifier(alpha=1.0).fit([(X_CONTEXT, np.arange(6))]),
        ["source_tasks[0]", "two labels", "got 6"],
    ),
    (lambda m: WFEMClassifier().fit(), ["both empty"]),
    (lambda m: WFEMClassifier(training=Training(standardize="classes")).fit(SOURCE), ["standardize", "within-class"]),
    (lambda m: WFEMClassifier(kernel="cosine").fit(SOURCE), ["kernel must be one of", "linear+rbf"]),
    (lambda m: WFEMClassifier(encoder="resnet").fit(SOURCE), ["encoder must be one of None", "conv"]),
    (lambda m: WFEMClassifier(alpha="pooled", encoder="conv").fit(SOURCE), ["encoder", "square image"]),
]


@pytest.mark.parametrize(("call", "parts"), BAD)
def test_bad_input(meta, call, parts):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call(meta)
    assert all(part in str(error.value) for part in parts), error.value


def test_scikit_learn_habits():
    meta = WFEMClassifier(alpha=0.2, hyperprior=HyperPrior(std={"weights": 0.5}))
    assert clone(meta).get_params() == meta.get_params()
    with pytest.raises(NotFittedError):
        meta.adapt(X_CONTEXT, Y_CONTEXT)
    first, second = (WFEMClassifier(**QUICK).fit(SOURCE, TARGET) for _ in range(2))
    assert len(first.loss_trace_) == 20
    np.testing.assert_array_equal(first.loss_trace_, second.loss_trace_)
