"""From what users pass as `mean`, `kernel` and `encoder` to descriptions and modules."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tinygp
from jaxtyping import Array

from metaprior.checks import Argument, Message
from metaprior.wfem.hyperprior import groups, split
from metaprior.wfem.inference import MAP, SVGD, Laplace, Method
from metaprior.wfem.kernels import LinearKernel, LinearRBFKernel, MLPKernel, RBFKernel
from metaprior.wfem.means import ConstantMean, LinearMean, MLPMean, ZeroMean
from metaprior.wfem.networks import ConvEncoder, MLPEncoder

MEANS = {"mlp": MLPMean, "linear": LinearMean, "constant": ConstantMean, "zero": ZeroMean}
ENCODERS = {"mlp": MLPEncoder, "conv": ConvEncoder}
KERNELS = {"mlp": MLPKernel, "linear": LinearKernel, "linear+rbf": LinearRBFKernel, "rbf": RBFKernel}
METHODS = {"map": MAP, "svgd": SVGD, "laplace": Laplace}
FUNCTION = "or a function of one input point"
KERNEL_MODULE = (
    "a tinygp kernel (for a function of two points: tinygp.kernels.Custom), "
    "or an equinox module called as kernel(X1, X2) and kernel(X)"
)


def resolve_encoder(encoder: Any) -> Any:
    """Return None, a description or a module."""
    return None if encoder is None else _resolve("encoder", encoder, ENCODERS, callable(encoder), FUNCTION)


def resolve_mean(mean: Any) -> Any:
    """Return a description or a module."""
    return _resolve("mean", mean, MEANS, callable(mean), FUNCTION)


def resolve_kernel(kernel: Any) -> Any:
    """Return a description or a module."""
    if isinstance(kernel, tinygp.kernels.Kernel):
        return _learn_positive(kernel)
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


def check_compiled(name: str, part: Any, arrays: bool = True) -> None:
    """Raise unless a part of a user's own is hashable, but for its arrays if it may have some: it is compiled."""
    structure, rest = eqx.partition(part, lambda leaf: arrays and hasattr(leaf, "dtype"))
    try:
        hash((jax.tree.structure(structure), *jax.tree.leaves(rest)))
    except TypeError:
        advice = f"make it a frozen dataclass{' or an Equinox module' * arrays}, with tuples in place of lists."
        raise ValueError(Message(Argument(name), f" must be hashable, and {part!r} is not: {advice}")) from None


def name_of(kernel: Any) -> str:
    """Return the name of a kernel, or of its class if it is a custom one."""
    return next((name for name, known in KERNELS.items() if isinstance(kernel, known)), type(kernel).__name__)


class PositiveKernel(tinygp.kernels.Kernel):
    """A custom kernel whose positive parameters are learned as logarithms, so that they stay positive."""

    parameters: tinygp.kernels.Kernel  # logarithms where `positive`
    positive: tinygp.kernels.Kernel = eqx.field(static=True)
    rest: tinygp.kernels.Kernel

    def kernel(self) -> tinygp.kernels.Kernel:
        """Return the custom kernel with its current parameters."""
        exp = lambda value, is_positive: jnp.exp(value) if is_positive else value  # noqa: E731
        return eqx.combine(jax.tree.map(exp, self.parameters, self.positive), self.rest)

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """Evaluate at one pair of points."""
        return self.kernel().evaluate(X1, X2)

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """Return the kernel matrix, or its diagonal."""
        return self.kernel()(X1, X2)


def _learn_positive(kernel: tinygp.kernels.Kernel) -> PositiveKernel:
    """Make every float of a custom kernel learnable, as a logarithm if it is a positive scale not named log_..."""
    parameters, rest = split(_as_arrays(kernel))

    def starts_positive(path: tuple, leaf: Array, group: str) -> bool:
        is_log = any(str(getattr(key, "name", "")).startswith("log_") for key in path)
        return group == "scales" and not is_log and bool(jnp.all(leaf > 0))

    positive = jax.tree_util.tree_map_with_path(starts_positive, parameters, groups(parameters))
    logs = jax.tree.map(lambda leaf, is_positive: jnp.log(leaf) if is_positive else leaf, parameters, positive)
    return PositiveKernel(logs, positive, rest)


def _resolve(argument: str, value: Any, registry: dict[str, Any], is_custom: bool, custom: str) -> Any:
    """Return a new description by its name, a given description, or a custom function or module."""
    if isinstance(value, str) and value in registry:
        return registry[value]()
    if not isinstance(value, type) and hasattr(value, "build"):
        return value
    if not isinstance(value, type) and is_custom:
        return _as_arrays(value)
    names, example = "None, " * (argument == "encoder") + ", ".join(registry), registry["mlp"].__name__
    kind = f"the class {value.__name__}, not an instance" if isinstance(value, type) else type(value).__name__
    found = repr(value) if isinstance(value, str) else kind
    expected = f"one of {names}, a description such as {example}(...), {custom}"
    raise ValueError(Message(Argument(argument), f" must be {expected}; got {found}."))


def _as_arrays(module: Any) -> Any:
    """Convert Python and NumPy floats to arrays, so that they are learned; integers stay as they are."""

    def is_float(leaf: Any) -> bool:
        return isinstance(leaf, float | np.floating) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f")

    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if is_float(leaf) else leaf, module)
