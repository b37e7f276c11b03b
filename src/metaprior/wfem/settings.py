"""What users ask for, resolved and checked: mean, kernel, encoder and inference by name or as objects, and training."""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import tinygp

from metaprior.checks import Argument, Message, check_bool, check_choice, check_integer, check_positive
from metaprior.tasks.categories import ColumnKinds
from metaprior.wfem.inference import MAP, SVGD, Laplace, Method
from metaprior.wfem.kernels import LinearKernel, LinearRBFKernel, MLPKernel, RBFKernel, as_arrays, learn_positive
from metaprior.wfem.likelihoods import Bernoulli, Gaussian
from metaprior.wfem.networks import ConstantMean, ConvEncoder, LinearMean, MLPEncoder, MLPMean, ZeroMean
from metaprior.wfem.objective import TEMPERATURES, HyperPrior, check_std
from metaprior.wfem.training import OPTIMIZERS, SCHEDULES

WITHIN_CLASS = "within-class"
MEANS = {"mlp": MLPMean, "linear": LinearMean, "constant": ConstantMean, "zero": ZeroMean}
ENCODERS = {"mlp": MLPEncoder, "conv": ConvEncoder}
KERNELS = {"mlp": MLPKernel, "linear": LinearKernel, "linear+rbf": LinearRBFKernel, "rbf": RBFKernel}
METHODS = {"map": MAP, "svgd": SVGD, "laplace": Laplace}
FUNCTION = "or a function of one input point"
KERNEL_MODULE = (
    "a tinygp kernel (for a function of two points: tinygp.kernels.Custom), "
    "or an equinox module called as kernel(X1, X2) and kernel(X)"
)


@dataclass(frozen=True)
class Training:
    """How a prior is trained.

    Parameters
    ----------
    n_steps : int, optional
        Steps of the optimizer, 2000 by default, and 1000 for labels. 0 leaves the prior at its initial parameters: the
        paper's "GP".
    learning_rate : float
        Learning rate at the start.
    optimizer : "adam" or "sgd"
    schedule : "cosine" or "constant"
        Learning-rate schedule.
    batch_size : int, optional
        Tasks per step, split evenly among the environments. By default all tasks, and 256 for stored tasks.
    standardize : bool or "within-class", optional
        Whether inputs and outputs are standardized by the tasks of the fit; predictions are in the units of y. "within-
        class", the default for labels, divides inputs by their standard deviation within the classes of a task, and
        decorrelates them.
    dtype : "auto", "float32" or "float64"
        Precision. "auto" is float64 if the noise is small against the spread of y or tasks are large. Adaptation and
        prediction are in float64.
    n_devices : int, optional
        Devices that share the training, by default all that JAX sees.
    search_time : float, optional
        Seconds that cross-validation may take, if it chooses anything; by default unlimited. Runs are shortened, and in
        less than 10 seconds, which compiling takes, nothing is compared.
    progress : bool, optional
        Show a progress bar, by default if standard error is a terminal.
    """

    n_steps: int | None = None
    learning_rate: float = 1e-2
    optimizer: str = "adam"
    schedule: str = "cosine"
    batch_size: int | None = None
    standardize: bool | str | None = None
    dtype: str = "auto"
    n_devices: int | None = None
    search_time: float | None = None
    progress: bool | None = None

    def __post_init__(self):
        for name, least in (("n_steps", 0), ("batch_size", 1), ("n_devices", 1)):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least=least)
        check_positive("learning_rate", self.learning_rate)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        is_rule = isinstance(self.standardize, str) and self.standardize == WITHIN_CLASS
        if self.standardize is not None and not is_rule:
            check_bool("standardize", self.standardize, f"{WITHIN_CLASS!r}, ")
        check_choice("dtype", self.dtype, ("auto", "float32", "float64"))
        if self.search_time is not None:
            check_positive("search_time", self.search_time, " of seconds, or None", limits=None)
        if self.progress is not None:
            check_bool("progress", self.progress)

    def portable(self) -> "Training":
        """Return the settings that a file holds: not those of one machine."""
        return replace(self, n_devices=None, progress=None)


@dataclass(frozen=True)
class Settings:
    """What the prior and its hyper-posterior are, apart from the tasks; checked values (see the estimators)."""

    mean: Any = MLPMean()
    kernel: Any = MLPKernel()
    encoder: Any = None
    likelihood: Any = Gaussian(0.1)
    temperature: float | str = "bayes"  # or "auto", which other temperatures are compared with
    temperature_factor: float = 1.0  # multiplies the temperature; varied by the search
    hyperprior: Any = HyperPrior()
    method: Method = MAP()
    standardize: bool | str = True  # or "within-class"
    kinds: ColumnKinds | None = None  # what the input columns are; None: numbers

    @property
    def labels(self) -> bool:
        """Whether y is 0 or 1."""
        return isinstance(self.likelihood, Bernoulli)

    @property
    def scales_outputs(self) -> bool:
        """Whether y is standardized: under other likelihoods it has no unit."""
        return isinstance(self.likelihood, Gaussian) and bool(self.standardize)

    @property
    def within_classes(self) -> bool:
        """Whether inputs are decorrelated within classes, but for convolutions: such pixels have no neighbors."""
        return self.standardize == WITHIN_CLASS and not isinstance(self.encoder, ConvEncoder)

    @property
    def prior_std(self) -> dict[str, float]:
        """Standard deviations of the hyper-prior; one for a custom hyper-prior."""
        return check_std(self.hyperprior.fixed_std if isinstance(self.hyperprior, HyperPrior) else 1.0)

    @property
    def tries_temperatures(self) -> bool:
        """Whether the temperature is chosen by cross-validation."""
        return isinstance(self.temperature, str) and self.temperature == "auto"

    @property
    def tries_prior_stds(self) -> bool:
        """Whether the scale of the hyper-prior is chosen by cross-validation."""
        return isinstance(self.hyperprior, HyperPrior) and self.hyperprior.is_auto


def resolve_encoder(encoder: Any) -> Any:
    """Return None, a description or a module."""
    return None if encoder is None else _resolve("encoder", encoder, ENCODERS, callable(encoder), FUNCTION)


def resolve_mean(mean: Any) -> Any:
    """Return a description or a module."""
    return _resolve("mean", mean, MEANS, callable(mean), FUNCTION)


def resolve_kernel(kernel: Any) -> Any:
    """Return a description or a module."""
    if isinstance(kernel, tinygp.kernels.Kernel):
        return learn_positive(kernel)
    is_module = isinstance(kernel, eqx.Module) and callable(kernel)
    return _resolve("kernel", kernel, KERNELS, is_module, KERNEL_MODULE)


def resolve_inference(inference: Any) -> Method:
    """Return an inference method, given its name or the method itself."""
    if isinstance(inference, str) and inference in METHODS:
        return METHODS[inference]()
    has_all = all(hasattr(inference, name) for name in ("direction", "interacts", "n_particles", "start"))
    if not isinstance(inference, str | type) and has_all:
        return inference
    expected = f"one of {', '.join(METHODS)}, MAP(...), SVGD(...), Laplace(...), or a method of your own with a "
    expected += "direction, n_particles, start and interacts, such as a subclass of MAP"
    found = f"the class {inference.__name__}, not an instance" if isinstance(inference, type) else repr(inference)
    raise ValueError(Message(Argument("inference"), f" must be {expected}; got {found}."))


def _resolve(argument: str, value: Any, registry: dict[str, Any], is_custom: bool, custom: str) -> Any:
    """Return a new description by its name, a given description, or a custom function or module."""
    if isinstance(value, str) and value in registry:
        return registry[value]()
    if not isinstance(value, type) and hasattr(value, "build"):
        return value
    if not isinstance(value, type) and is_custom:
        return as_arrays(value)
    names, example = "None, " * (argument == "encoder") + ", ".join(registry), registry["mlp"].__name__
    kind = f"the class {value.__name__}, not an instance" if isinstance(value, type) else type(value).__name__
    found = repr(value) if isinstance(value, str) else kind
    expected = f"one of {names}, a description such as {example}(...), {custom}"
    raise ValueError(Message(Argument(argument), f" must be {expected}; got {found}."))


def check_compiled(name: str, part: Any, arrays: bool = True) -> None:
    """Raise unless a custom part is hashable, except for its arrays if it may have some: it is compiled."""
    structure, rest = eqx.partition(part, lambda leaf: arrays and hasattr(leaf, "dtype"))
    try:
        hash((jax.tree.structure(structure), *jax.tree.leaves(rest)))
    except TypeError:
        advice = f"make it a frozen dataclass{' or an Equinox module' * arrays}, with tuples in place of lists."
        raise ValueError(Message(Argument(name), f" must be hashable, and {part!r} is not: {advice}")) from None


def check_temperature(temperature: Any) -> None:
    """Raise unless the temperature is a rule or a positive number."""
    rules = (*TEMPERATURES, "auto")
    if not (isinstance(temperature, str) and temperature in rules):
        check_positive("temperature", temperature, f", or one of {', '.join(rules)}")


def check_hyperprior(hyperprior: Any) -> None:
    """Raise unless the hyper-prior can be built, and compiled."""
    if isinstance(hyperprior, type) or not hasattr(hyperprior, "build"):
        expected = " must be HyperPrior(...), or an object of your own with a method build(theta); got "
        raise ValueError(Message(Argument("hyperprior"), f"{expected}{hyperprior!r}."))
    if not isinstance(hyperprior, HyperPrior):
        check_compiled("hyperprior", hyperprior)


def name_of(kernel: Any) -> str:
    """Return the name of a kernel, or of its class if it is a custom one."""
    return next((name for name, known in KERNELS.items() if isinstance(kernel, known)), type(kernel).__name__)
