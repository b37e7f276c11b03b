"""Mistakes end in one clear error that names the argument; odd but fine data in finite numbers."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from clear_errors import assert_clear_error
from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.likelihoods import Poisson
from metaprior.wfem import Gaussian, Training, WFEMRegressor

NAN, INFINITE = float("nan"), float("inf")
GOOD = ([[0.0], [1.0]], [0.0, 1.0])
GOOD_TEST = (*GOOD, *GOOD)
SMALL = {"alpha": "pooled", "random_state": 0}


@pytest.fixture(scope="module")
def fitted():
    return MetaGPRegressor(**SMALL).fit([GOOD])


@pytest.fixture(scope="module")
def task(fitted):
    return fitted.adapt(*GOOD)


def regressor(**arguments):
    return MetaGPRegressor(**SMALL).set_params(**arguments)


NO_POSITIVE_NUMBER = [0, 0.0, -1.0, NAN, INFINITE, None, True, "much", [0.1], np.array([0.1, 0.2]), 1j]
BAD_ARGUMENTS = {
    "alpha": (
        "a number in [0, 1], 'pooled', 'auto', a sequence of numbers in [0, 1]",
        [-0.1, 1.1, NAN, INFINITE, True, None, "target", "0.5", [], [0.5, 2.0]],
    ),
    "noise_std": ("a positive number in the units of y, or 'learned'", NO_POSITIVE_NUMBER),
    "likelihood": (
        "one of gaussian, student-t, poisson, negative-binomial, ordinal",
        ["other", "", None, 1, ["poisson"], Poisson(), Poisson, Gaussian],
    ),
    "search_time": ("a positive number of seconds, or None", [each for each in NO_POSITIVE_NUMBER if each is not None]),
    "conformal": ("True or False", ["no", None, 2]),
    "progress": ("True or False", ["no", 2]),
    "context": ('"random", "first", a number of readings', ["last", None, -1, 1.5, True]),
}


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("argument", "expected", "value"),
    [
        pytest.param(argument, expected, value, id=f"{argument}={value!r}"[:50])
        for argument, (expected, values) in BAD_ARGUMENTS.items()
        for value in values
    ],
)
def test_bad_constructor_argument(argument, expected, value):
    assert_clear_error(
        lambda: regressor(**{argument: value}).fit([GOOD]), f"{argument} must be", expected, "got", repr(value)
    )


MORE_BAD_ARGUMENTS = [
    ({"random_state": "seed"}, "random_state must be None, an integer from 0", "numpy.random.RandomState", "'seed'"),
    ({"random_state": -1}, "random_state must be None, an integer from 0 to 2**32 - 1", "got -1"),
    ({"alpha": 0.25}, "alpha=0.25", "weight 0.75 to the target environment", "no tasks", "alpha=1"),
    ({"alpha": 0}, "alpha=0", "weight 1 to the target environment", "no tasks", "alpha=1"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("arguments", "parts"), [(arguments, parts) for arguments, *parts in MORE_BAD_ARGUMENTS])
def test_bad_part_of_an_argument(arguments, parts):
    assert_clear_error(lambda: regressor(**arguments).fit([GOOD]), *parts)


OF_NETWORKS = ["kernel", "mean", "encoder", "inference", "n_particles", "temperature", "hyperprior", "prior_mean"]
OF_NETWORKS += ["prior_std", "training", "optimizer", "learning_rate", "schedule", "n_steps", "batch_size"]
OF_NETWORKS += ["standardize", "dtype", "n_devices"]
OF_FITS_OF_NETWORKS = ["validation_tasks", "patience", "checkpoint"]


@pytest.mark.parametrize(
    ("kind", "instead"), [(MetaGPRegressor, "WFEMRegressor"), (MetaGPClassifier, "WFEMClassifier")]
)
def test_what_only_priors_of_networks_have_is_told_where(kind, instead):
    for name in OF_NETWORKS:
        for call in (kind, kind().set_params):
            found = f"{kind.__name__} has no {name}: use metaprior.wfem.{instead}, whose priors are networks."
            assert_clear_error(lambda: call(**{name: 1}), found, error=TypeError)  # noqa: B023
    for name in OF_FITS_OF_NETWORKS:
        found = f"{kind.__name__} has no {name}: use metaprior.wfem.{instead}, whose priors are networks."
        assert_clear_error(lambda: kind().fit([GOOD], **{name: 1}), found, error=TypeError)  # noqa: B023


class OwnLikelihood:
    """As `WFEMRegressor` takes it."""

    response = Poisson()

    def log_density(self, y, t):
        return y * t


@pytest.mark.parametrize("likelihood", [Gaussian(), Gaussian(noise_std=0.1), OwnLikelihood()])
def test_likelihoods_of_networks_are_told_where(likelihood):
    found = (
        f"objects such as {type(likelihood).__name__} are for metaprior.wfem.WFEMRegressor, whose priors are networks."
    )
    assert_clear_error(
        lambda: MetaGPRegressor(likelihood=likelihood).fit([GOOD]), "likelihood must be a name", found, error=TypeError
    )


@pytest.mark.parametrize("kind", [MetaGPRegressor, MetaGPClassifier])
def test_an_unknown_argument_is_an_error_of_python_or_scikit_learn(kind):
    with pytest.raises(TypeError, match="unexpected keyword argument 'guarante'"):
        kind(guarante=True)
    with pytest.raises(ValueError, match="Invalid parameter 'guarante'"):
        kind().set_params(guarante=True)


DAYS = np.array(["2001-01-01", "2001-01-02"], "datetime64[D]")
BAD_TASKS = [
    ([GOOD, ([0.0, NAN], [0.0, 1.0])], "[1]: X must be finite", "1 value is NaN or infinite, the first at 1"),
    ([([[0.0, 1.0], [INFINITE, NAN]], [0.0, 1.0])], "[0]: X must be finite", "2 values", "the first at (1, 0)"),
    ([GOOD, ([0.0, 1.0], [-INFINITE, 1.0])], "[1]: y must be finite", "the first at 0"),
    ([GOOD, ([0.0, 1.0], [1.0])], "[1]: X and y must have the same number of samples", "X has 2 and y has 1"),
    ([GOOD, ([[0.0, 1.0]], [1.0])], "[1]: X must have 1 column", "got 2"),
    ([([[0.0, 1.0]], [1.0]), GOOD], "[1]: X must have 2 columns", "got 1"),
    ([GOOD, ([], [])], "[1] is empty", "at least one sample"),
    ([(np.zeros((2, 0)), [0.0, 1.0])], "[0]: X must have shape (n, d), (n,) or", "(2, 0)"),
    ([(np.zeros((2, 0, 3)), [0.0, 1.0])], "[0]: X must have shape (n, d), (n,) or", "(2, 0, 3)"),
    ([([0.0, 1.0], np.zeros((2, 2)))], "[0]: y must have shape (n,)", "(2, 2)"),
    ([([0.0, 1.0], 1.0)], "[0]: y must have shape (n,)", "()"),
    ([(["a", "b"], [0.0, 1.0])], "[0]: X must be an array of numbers", "got list"),
    ([(["1", "2"], [0.0, 1.0])], "[0]: X must be an array of numbers", "got list"),
    ([GOOD, ([0.0, 1.0], DAYS)], "[1]: y must be an array of numbers", "datetime64"),
    ([([object(), object()], [0.0, 1.0])], "[0]: X must be an array of numbers", "got list"),
    ([([None, 1.0], [0.0, 1.0])], "[0]: X must be"),
    ([([1j, 2j], [0.0, 1.0])], "[0]: X must be an array of numbers", "complex"),
    ([([0.0, 1.0], [1j, 1.0])], "[0]: y must be an array of numbers", "complex"),
    ([([[0.0], [1.0, 2.0]], [0.0, 1.0])], "[0]: X must be an array of numbers", "got list"),
    ([([10**400, 1], [0.0, 1.0])], "[0]: X must be"),
    ([(np.ma.masked_array([0.0, 1.0], [True, False]), [0.0, 1.0])], "[0]: X must", "mask"),
    (np.zeros((2, 3)), " must be a sequence of (X, y)", "got ndarray"),
    ("tasks", " must be a sequence of (X, y)", "got str"),
    (3, " must be a sequence of (X, y)", "got int"),
    ([GOOD_TEST], "[0] must be (X, y)", "got 4 parts"),
    ([GOOD, np.zeros((2, 2))], "[1] must be (X, y)", "got ndarray"),
    ([GOOD, None], "[1] must be (X, y)", "got NoneType"),
    ((np.zeros((2, 1)), np.zeros(2)), "[0] must be (X, y)", "got ndarray"),  # one task, not a list of tasks
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("environment", ["source_tasks", "target_tasks"])
@pytest.mark.parametrize(("tasks", "where", "parts"), [(tasks, where, parts) for tasks, where, *parts in BAD_TASKS])
def test_bad_tasks(environment, tasks, where, parts):
    assert_clear_error(lambda: regressor().fit(**{environment: tasks}), environment + where, *parts)


@pytest.mark.usefixtures("as_installed")
def test_tasks_in_a_mapping_need_names():
    parts = "source_tasks must map names to tasks", "keys must be strings", "got 0"
    assert_clear_error(lambda: regressor().fit({0: GOOD}), *parts)
    parts = "target_tasks must be a sequence of (X, y)", "got dict"
    assert_clear_error(lambda: regressor().fit(target_tasks={0: GOOD}), *parts)


def test_tasks_missing_or_of_two_dimensions_between_environments():
    for empty in (None, []):
        assert_clear_error(lambda: regressor().fit(empty, empty), "source_tasks and target_tasks are both empty")  # noqa: B023
    two_columns = [([[1.0, 2.0]], [0.0])]
    assert_clear_error(lambda: regressor().fit([GOOD], two_columns), "target_tasks[0]: X must have 1 column", "got 2")
    assert_clear_error(
        lambda: regressor(alpha=1.0).fit([], [GOOD]), "weight 1 to the source", "source_tasks, or alpha=0"
    )


BAD_TEST_TASKS = [
    ([], " is empty", "at least one (X_context, y_context, X_query, y_query)"),
    ({}, " must be a sequence of (X_context, y_context, X_query, y_query)", "got dict"),
    (np.zeros((2, 4)), " must be a sequence of (X_context", "got ndarray"),
    ([GOOD], "[0] must be (X_context, y_context, X_query, y_query)", "got 2 parts"),
    ([GOOD_TEST, (*GOOD, [], [])], "[1] query is empty", "nothing to predict"),
    ([GOOD_TEST, (*GOOD, [0.0], [NAN])], "[1] query: y must be finite"),
    ([([NAN], [0.0], *GOOD)], "[0] context: X must be finite"),
    ([([0.0, 1.0], [0.0], *GOOD)], "[0] context: X and y must have the same number of samples", "2", "1"),
    ([(*GOOD, [[0.0, 1.0]], [0.0])], "[0] query: X must have 1 column", "got 2"),
    ([([[0.0, 1.0]], [0.0], *GOOD)], "[0] context: X must have 1 column", "got 2"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("tasks", "where", "parts"), [(tasks, where, parts) for tasks, where, *parts in BAD_TEST_TASKS]
)
def test_bad_test_tasks(fitted, tasks, where, parts):
    assert_clear_error(lambda: fitted.evaluate(tasks), "test_tasks" + where, *parts)
    meta = WFEMRegressor("rbf", "zero", alpha="pooled", training=Training(n_steps=1))
    assert_clear_error(lambda: meta.fit([GOOD], validation_tasks=tasks), "validation_tasks" + where, *parts)


BAD_CALLS = [
    (lambda meta, _: meta.adapt([0.0, 1.0], [0.0]), "adapt: X and y must have the same number", "2", "1"),
    (lambda meta, _: meta.adapt([[0.0, 1.0]], [0.0]), "adapt: X must have 1 column", "got 2"),
    (lambda meta, _: meta.adapt([0.0], [INFINITE]), "adapt: y must be finite"),
    (lambda meta, _: meta.evaluate(None), "test_tasks"),
    (lambda meta, _: meta.evaluate([GOOD_TEST], coverage=1.0), "coverage must lie strictly between", "1.0"),
    (lambda meta, _: meta.evaluate([GOOD_TEST], coverage="most"), "coverage must", "'most'"),
    (lambda _, task: task.predict([[0.0, 1.0]]), "predict: X must have 1 column", "got 2"),
    (lambda _, task: task.predict([NAN]), "predict: X must be finite"),
    (lambda _, task: task.predict(0.5), "predict: X must have shape (n, d), (n,) or", "()"),
    (lambda _, task: task.predict(["a"]), "predict: X must be an array of numbers", "got list"),
    (lambda _, task: task.predict([0.0], return_std=True, return_cov=True), "return_std and return_cov exclude"),
    (lambda _, task: task.log_density([0.0, 1.0], [0.0]), "log_density: X and y must have the same number", "2", "1"),
    (lambda _, task: task.log_density([[0.0, 1.0]], [0.0]), "log_density: X must have 1 column", "got 2"),
    (lambda _, task: task.log_density([0.0], [NAN]), "log_density: y must be finite"),
    (lambda _, task: task.quantile([0.0], 1.5), "probability must lie strictly between 0 and 1", "1.5"),
    (lambda _, task: task.quantile([0.0], "half"), "probability", "'half'"),
    (lambda _, task: task.quantile([0.0], [[0.5]]), "probability must be a scalar or a vector", "(1, 1)"),
    (lambda _, task: task.interval([0.0], 0.0), "coverage must lie strictly between 0 and 1", "0"),
    (lambda _, task: task.interval([0.0], None), "coverage must", "None"),
    (lambda _, task: task.sample([0.0], -1), "n_samples must be an integer of at least", "got -1"),
    (lambda _, task: task.sample([0.0], 1.5), "n_samples must be an integer of at least", "got 1.5"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("call", "parts"), [pytest.param(call, parts, id=parts[0]) for call, *parts in BAD_CALLS])
def test_bad_call(fitted, task, call, parts):
    assert_clear_error(lambda: call(fitted, task), *parts)


@pytest.mark.parametrize("method", ["adapt", "evaluate", "save", "compare"])
def test_an_unfitted_estimator_says_so(method, tmp_path):
    meta = MetaGPRegressor()
    arguments = {"adapt": GOOD, "evaluate": ([GOOD_TEST],), "save": (tmp_path / "prior",)}.get(method, ([],))
    assert_clear_error(lambda: getattr(meta, method)(*arguments), "MetaGPRegressor", "not fitted", error=NotFittedError)
    assert not list(tmp_path.iterdir())
