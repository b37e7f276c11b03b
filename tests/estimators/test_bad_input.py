"""Mistakes end in one clear error that names the argument; odd but fine data in finite numbers."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import tinygp
from sklearn.exceptions import NotFittedError

from metaprior import MAP, SVGD, MetaGPRegressor, MLPKernel, MLPMean, RBFKernel

NAN, INFINITE = float("nan"), float("inf")
GOOD = ([[0.0], [1.0]], [0.0, 1.0])
GOOD_TEST = (*GOOD, *GOOD)
SMALL = {"alpha": "pooled", "mean": "zero", "kernel": "rbf", "n_steps": 0, "random_state": 0}


@pytest.fixture
def as_installed():
    """Type checks off, as they are for users: a mistake has to be caught by the package itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def fitted():
    return MetaGPRegressor(**SMALL).fit([GOOD])


@pytest.fixture(scope="module")
def task(fitted):
    return fitted.adapt(*GOOD)


def regressor(**arguments):
    return MetaGPRegressor(**SMALL).set_params(**arguments)


def assert_clear_error(call, *parts, error=ValueError):
    """`call` raises one short error that holds every part."""
    with pytest.raises(error) as raised:
        call()
    text = str(raised.value)
    assert raised.value.__cause__ is None, "an error behind the error"
    assert raised.value.__context__ is None or raised.value.__suppress_context__, "an error before the error"
    assert len(text) < 500, text
    for part in parts:
        assert part in text, text


NO_POSITIVE_NUMBER = [0, 0.0, -1.0, NAN, INFINITE, None, True, "much", [0.1], np.array([0.1, 0.2]), 1j]
NO_COUNT = [-1, 1.5, NAN, "many", True, [3], np.float64(2.0)]
NO_NAME = ["other", "", None, 1, ["adam"]]
BAD_ARGUMENTS = {
    "alpha": (
        "a number in [0, 1], 'pooled', 'auto', a sequence of numbers in [0, 1]",
        [-0.1, 1.1, NAN, INFINITE, True, None, "target", "0.5", [], [0.5, 2.0]],
    ),
    "noise_std": ("a positive number in the units of y, or 'learned'", NO_POSITIVE_NUMBER),
    "temperature": ("a positive number, or one of paper, effective, bayes", NO_POSITIVE_NUMBER),
    "learning_rate": ("a positive number", NO_POSITIVE_NUMBER),
    "prior_std": ("a positive number, or a mapping from group", [*NO_POSITIVE_NUMBER, {"weights": 0.0}]),
    "prior_mean": (
        "'zero', 'initial', or a mapping from group",
        ["one", 0.0, None, NAN, {"weights": NAN}, {"biases": "x"}, {"weights": np.zeros(2)}],
    ),
    "n_steps": ("an integer of at least 0", NO_COUNT),
    "n_particles": ("an integer of at least 1", [*NO_COUNT, 0]),
    "batch_size": ("an integer of at least 1", [*NO_COUNT, 0]),
    "optimizer": ("one of adam, sgd", NO_NAME),
    "schedule": ("one of constant, cosine", NO_NAME),
    "dtype": ("one of auto, float32, float64", [*NO_NAME, "float16", np.float32, np.dtype("float32")]),
    "inference": ("'auto', 'map', 'svgd', 'laplace', MAP(...), SVGD(...) or Laplace(...)", ["vi", None, MAP, 1]),
    "kernel": (
        "one of auto, mlp, inducing, linear",
        ["other", None, 3.0, min, tinygp.kernels.Exp, MLPKernel, RBFKernel],
    ),
    "mean": ("one of auto, mlp, inducing, linear, constant, zero", ["other", None, 3.0, MLPMean]),
    "standardize": ("True or False", ["no", None, 2]),
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
    came = type(value).__name__ if argument in ("kernel", "mean") and not isinstance(value, str) else repr(value)
    parts = (f"{argument} must be", expected, "got", "" if isinstance(value, type) else came)
    assert_clear_error(lambda: regressor(**{argument: value}).fit([GOOD]), *parts)


def custom(function):
    return tinygp.kernels.Custom(function)


MORE_BAD_ARGUMENTS = [
    ({"prior_std": {"weight": 1.0}}, "prior_std", "weights, biases, scales", "'weight'"),
    ({"prior_mean": {"weight": 1.0}}, "prior_mean", "weights, biases, scales", "'weight'"),
    ({"mean": lambda x: x}, "mean: mean(x) of one point must have shape ()", "got (1,)"),
    (
        {"noise_std": 0.1, "kernel": custom(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2)))},
        "mean, kernel and noise_std leave nothing to",
    ),
    ({"random_state": "seed"}, "random_state must be None, an integer from 0", "numpy.random.RandomState", "'seed'"),
    ({"random_state": -1}, "random_state must be None, an integer from 0 to 2**32 - 1", "got -1"),
    ({"alpha": 0.25}, "alpha=0.25", "weight 0.75 to the target environment", "no tasks", "alpha=1"),
    ({"alpha": 0}, "alpha=0", "weight 1 to the target environment", "no tasks", "alpha=1"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("arguments", "parts"), [(arguments, parts) for arguments, *parts in MORE_BAD_ARGUMENTS])
def test_bad_part_of_an_argument(arguments, parts):
    assert_clear_error(lambda: regressor(**arguments).fit([GOOD]), *parts)


@pytest.mark.usefixtures("as_installed")
def test_a_mistake_in_an_own_kernel_is_named_and_shown():
    with pytest.raises(ValueError, match=r"^kernel: kernel\(X1, X2\) of 2 and 3 points") as raised:
        regressor(mean="constant", kernel=custom(lambda a, b: a - b)).fit([GOOD])
    assert isinstance(raised.value.__cause__, Exception)


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


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("patience", [0, -1, 1.5, "long", True])
@pytest.mark.parametrize("tasks", [[GOOD_TEST], None], ids=["validation", "none"])
def test_bad_patience(patience, tasks):
    meta = regressor(n_steps=1)
    parts = ("patience must be an integer of at least 1", f"got {patience!r}")
    assert_clear_error(lambda: meta.fit([GOOD], validation_tasks=tasks, patience=patience), *parts)


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
    meta = regressor(n_steps=1)
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
    (lambda *_: MLPKernel(hidden_sizes="ab"), "hidden_sizes must be a sequence of integers", "'ab'"),
    (lambda *_: MLPMean(hidden_sizes=(3, 0)), "hidden_sizes[1] must be an integer of at least 1", "got 0"),
    (lambda *_: MLPMean(activation="sine"), "activation must be one of tanh", "'sine'"),
    (lambda *_: MLPKernel(n_features=0), "n_features must be an integer of at least 1", "got 0"),
    (lambda *_: RBFKernel(length_scale=-1.0), "length_scale must be a positive number", "got -1.0"),
    (lambda *_: SVGD(length_scale=np.ones(2)), "length_scale must be a positive number, or 'median'", "array"),
    (lambda *_: MAP(start="random"), "start must be one of initializer, hyperprior", "'random'"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("call", "parts"), [pytest.param(call, parts, id=parts[0]) for call, *parts in BAD_CALLS])
def test_bad_call(fitted, task, call, parts):
    assert_clear_error(lambda: call(fitted, task), *parts)


@pytest.mark.parametrize("method", ["adapt", "evaluate", "save", "particles_"])
def test_an_unfitted_estimator_says_so(method, tmp_path):
    meta = MetaGPRegressor()
    arguments = {"adapt": GOOD, "evaluate": ([GOOD_TEST],), "save": (tmp_path / "prior",), "particles_": ()}[method]
    assert_clear_error(lambda: getattr(meta, method)(*arguments), "MetaGPRegressor", "not fitted", error=NotFittedError)
    assert not list(tmp_path.iterdir())
