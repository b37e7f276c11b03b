"""Mistakes in what only priors of networks have end in one clear error that names the argument."""

import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from sklearn.exceptions import NotFittedError

from clear_errors import assert_clear_error
from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.wfem import (
    MAP,
    SVGD,
    Gaussian,
    HyperPrior,
    Laplace,
    MLPKernel,
    MLPMean,
    RBFKernel,
    Training,
    WFEMClassifier,
    WFEMRegressor,
)

NAN, INFINITE = float("nan"), float("inf")
GOOD = ([[0.0], [1.0]], [0.0, 1.0])
GOOD_TEST = (*GOOD, *GOOD)
SMALL = {"alpha": "pooled", "mean": "zero", "kernel": "rbf", "training": Training(n_steps=0), "random_state": 0}

NO_POSITIVE_NUMBER = [0, 0.0, -1.0, NAN, INFINITE, None, True, "much", [0.1], np.array([0.1, 0.2]), 1j]
NO_COUNT = [-1, 1.5, NAN, "many", True, [3], np.float64(2.0)]
NO_NAME = ["other", "", None, 1, ["adam"]]
NO_DENSITY = [{"weights": NAN}, {"biases": "x"}, {"weights": np.zeros(2)}]
# Of the estimator, or of what one of its arguments is: the name, what is expected, and what came.
BAD_ARGUMENTS = {
    WFEMRegressor: {
        "alpha": (
            "a number in [0, 1], 'pooled', 'auto', a sequence of numbers in [0, 1]",
            [-0.1, 1.1, NAN, INFINITE, True, None, "target", "0.5", [], [0.5, 2.0]],
        ),
        "temperature": ("a positive number, or one of paper, effective, bayes, auto", NO_POSITIVE_NUMBER),
        "inference": ("one of map, svgd, laplace, MAP(...), SVGD(...), Laplace(...)", ["vi", None, MAP, 1]),
        "kernel": ("one of mlp, linear", ["other", None, 3.0, min, tinygp.kernels.Exp, MLPKernel, RBFKernel]),
        "mean": ("one of mlp, linear, constant, zero", ["other", None, 3.0, MLPMean]),
        "encoder": ("one of None, mlp, conv", ["other", 3.0]),
        "likelihood": ("Gaussian(...), or one of your own", ["poisson", None, Gaussian, 0.1]),
        "hyperprior": ("HyperPrior(...), or an object of your own", ["zero", None, HyperPrior, 1.0]),
        "training": ("Training(...)", [None, 100, {"n_steps": 100}, Training]),
    },
    Gaussian: {"noise_std": ("a positive number in the units of y, or 'learned'", NO_POSITIVE_NUMBER)},
    HyperPrior: {
        "std": ("a positive number, or a mapping from group", [*NO_POSITIVE_NUMBER, {"weights": 0.0}]),
        "mean": ("'zero', 'initial', or a mapping from group", ["one", 0.0, None, NAN, *NO_DENSITY]),
    },
    MAP: {"n_particles": ("an integer of at least 1", [*NO_COUNT, 0])},
    SVGD: {"n_particles": ("an integer of at least 1", [*NO_COUNT, 0])},
    Laplace: {"n_draws": ("an integer of at least 1", [*NO_COUNT, 0])},
    Training: {
        "n_steps": ("an integer of at least 0", NO_COUNT),
        "batch_size": ("an integer of at least 1", [*NO_COUNT, 0]),
        "n_devices": ("an integer of at least 1", [*NO_COUNT, 0]),
        "learning_rate": ("a positive number", NO_POSITIVE_NUMBER),
        "search_time": ("a positive number of seconds, or None", NO_POSITIVE_NUMBER),
        "optimizer": ("one of adam, sgd", NO_NAME),
        "schedule": ("one of constant, cosine", NO_NAME),
        "dtype": ("one of auto, float32, float64", [*NO_NAME, "float16", np.float32, np.dtype("float32")]),
        "standardize": ("'within-class', True or False", ["no", 2, np.zeros(2)]),
        "progress": ("True or False", ["no", 2]),
    },
}


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("kind", "argument", "expected", "value"),
    [
        pytest.param(kind, argument, expected, value, id=f"{kind.__name__} {argument}={value!r}"[:50])
        for kind, arguments in BAD_ARGUMENTS.items()
        for argument, (expected, values) in arguments.items()
        for value in values
        if not (value is None and argument == "search_time")
    ],
)
def test_bad_argument(kind, argument, expected, value):
    def use():
        made = kind(**{**SMALL, argument: value} if kind is WFEMRegressor else {argument: value})
        return made.fit([GOOD]) if kind is WFEMRegressor else made

    named = argument in ("kernel", "mean", "encoder") and kind is WFEMRegressor and not isinstance(value, str)
    came = type(value).__name__ if named else repr(value)
    parts = (f"{argument} must be", expected, "got", "" if isinstance(value, type) else came)
    assert_clear_error(use, *parts)


def custom(function):
    return tinygp.kernels.Custom(function)


MORE_BAD_ARGUMENTS = [
    ({"mean": lambda x: x}, "mean: mean(x) of one point must have shape ()", "got (1,)"),
    (
        {
            "likelihood": Gaussian(noise_std=0.1),
            "kernel": custom(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2))),
        },
        "mean, kernel and likelihood leave nothing to",
    ),
    ({"random_state": "seed"}, "random_state must be None, an integer from 0", "numpy.random.RandomState", "'seed'"),
    ({"random_state": -1}, "random_state must be None, an integer from 0 to 2**32 - 1", "got -1"),
    ({"alpha": 0.25}, "alpha=0.25", "weight 0.75 to the target environment", "no tasks", "alpha=1"),
    ({"alpha": 0}, "alpha=0", "weight 1 to the target environment", "no tasks", "alpha=1"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("arguments", "parts"), [(arguments, parts) for arguments, *parts in MORE_BAD_ARGUMENTS])
def test_bad_part_of_an_argument(arguments, parts):
    assert_clear_error(lambda: WFEMRegressor(**{**SMALL, **arguments}).fit([GOOD]), *parts)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("argument", ["mean", "std"])
def test_a_hyper_prior_names_the_groups_that_there_are(argument):
    parts = f"{argument} must have groups weights, biases, scales", "'weight'"
    assert_clear_error(lambda: HyperPrior(**{argument: {"weight": 1.0}}), *parts)


@pytest.mark.usefixtures("as_installed")
def test_a_mistake_in_an_own_kernel_is_named_and_shown():
    with pytest.raises(ValueError, match=r"^kernel: kernel\(X1, X2\) of 2 and 3 points") as raised:
        WFEMRegressor(**{**SMALL, "mean": "constant", "kernel": custom(lambda a, b: a - b)}).fit([GOOD])
    assert isinstance(raised.value.__cause__, Exception)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("patience", [0, -1, 1.5, "long", True])
@pytest.mark.parametrize("tasks", [[GOOD_TEST], None], ids=["validation", "none"])
def test_bad_patience(patience, tasks):
    meta = WFEMRegressor(**{**SMALL, "training": Training(n_steps=1)})
    parts = ("patience must be an integer of at least 1", f"got {patience!r}")
    assert_clear_error(lambda: meta.fit([GOOD], validation_tasks=tasks, patience=patience), *parts)


BAD_CALLS = [
    (lambda: MLPKernel(hidden_sizes="ab"), "hidden_sizes must be a sequence of integers", "'ab'"),
    (lambda: MLPMean(hidden_sizes=(3, 0)), "hidden_sizes[1] must be an integer of at least 1", "got 0"),
    (lambda: MLPMean(activation="sine"), "activation must be one of tanh", "'sine'"),
    (lambda: MLPKernel(n_features=0), "n_features must be an integer of at least 1", "got 0"),
    (lambda: RBFKernel(length_scale=-1.0), "length_scale must be a positive number", "got -1.0"),
    (lambda: SVGD(length_scale=np.ones(2)), "length_scale must be a positive number, or 'median'", "array"),
    (lambda: MAP(start="random"), "start must be one of initializer, hyperprior", "'random'"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("call", "parts"), [pytest.param(call, parts, id=parts[0]) for call, *parts in BAD_CALLS])
def test_bad_description(call, parts):
    assert_clear_error(call, *parts)


@pytest.mark.parametrize("method", ["adapt", "evaluate", "save", "particles_", "particle_weights_", "to_arviz"])
def test_an_unfitted_estimator_says_so(method, tmp_path):
    meta = WFEMRegressor()
    arguments = {"adapt": GOOD, "evaluate": ([GOOD_TEST],), "save": (tmp_path / "prior",)}.get(method, ())
    assert_clear_error(lambda: getattr(meta, method)(*arguments), "WFEMRegressor", "not fitted", error=NotFittedError)
    assert not list(tmp_path.iterdir())


IN_TRAINING = ["n_steps", "learning_rate", "optimizer", "schedule", "batch_size", "standardize", "dtype", "n_devices"]
IN_TRAINING += ["search_time", "progress"]
ELSEWHERE = {name: f"training=Training({name}=...)" for name in IN_TRAINING}
ELSEWHERE |= {"prior_mean": "hyperprior=HyperPrior(mean=...)", "prior_std": "hyperprior=HyperPrior(std=...)"}
ELSEWHERE |= {"n_particles": "inference=SVGD(n_particles=...)"}


@pytest.mark.parametrize("door", ["constructor", "set_params"])
@pytest.mark.parametrize("kind", [WFEMRegressor, WFEMClassifier])
def test_settings_that_another_argument_holds_are_told_where(kind, door):
    default = {WFEMRegressor: MetaGPRegressor, WFEMClassifier: MetaGPClassifier}[kind].__name__
    of_default = dict.fromkeys(["covariates", "exposure", "conformal", "calibrate"], f"metaprior.{default}")
    of_kind = {
        WFEMRegressor: {"noise_std": "likelihood=Gaussian(noise_std=...)"},
        WFEMClassifier: {"likelihood": "metaprior.wfem.WFEMRegressor"},
    }[kind]
    for name, instead in {**ELSEWHERE, **of_default, **of_kind}.items():
        call = kind if door == "constructor" else kind().set_params
        found = f"{kind.__name__} has no {name}: use {instead}"
        assert_clear_error(lambda: call(**{name: 1}), found, error=TypeError)  # noqa: B023


@pytest.mark.parametrize("kind", [WFEMRegressor, WFEMClassifier])
def test_an_unknown_setting_is_an_error_of_python_or_scikit_learn(kind):
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_step'"):
        kind(n_step=1)
    with pytest.raises(ValueError, match="Invalid parameter 'n_step'"):
        kind().set_params(n_step=1)
