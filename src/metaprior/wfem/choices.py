"""From what users pass as `mean`, `kernel` and `encoder` to descriptions and modules."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tinygp
from jaxtyping import Array

from metaprior.checks import Argument, Message
from metaprior.wfem.encoders import ConvEncoder, MLPEncoder
from metaprior.wfem.inducing import InducingKernel, InducingMean
from metaprior.wfem.kernels import LinearKernel, LinearRBFKernel, MLPKernel, RBFKernel
from metaprior.wfem.means import ConstantMean, LinearMean, MLPMean, ZeroMean
from metaprior.wfem.parameters import groups, split

MEANS = {"mlp": MLPMean, "inducing": InducingMean, "linear": LinearMean, "constant": ConstantMean, "zero": ZeroMean}
ENCODERS = {"mlp": MLPEncoder, "conv": ConvEncoder}
KERNELS = {
    "mlp": MLPKernel,
    "inducing": InducingKernel,
    "linear": LinearKernel,
    "linear+rbf": LinearRBFKernel,
    "rbf": RBFKernel,
}
AUTO = "auto"
FUNCTION = "or a function of one input point"
KERNEL_MODULE = (
    "a tinygp kernel (for a function of two points: tinygp.kernels.Custom), "
    "or an equinox module called as kernel(X1, X2) and kernel(X)"
)
MAX_INDUCING_DIM = 3  # input dimensions up to which 'auto' tries the inducing prior


def resolve_encoder(encoder: Any) -> Any:
    """Return None, a description or a module."""
    return None if encoder is None else _resolve("encoder", encoder, "None", ENCODERS, callable(encoder), FUNCTION)


def resolve_mean(mean: Any) -> Any:
    """Return AUTO, a description or a module."""
    return AUTO if _is_auto(mean) else _resolve("mean", mean, AUTO, MEANS, callable(mean), FUNCTION)


def resolve_kernel(kernel: Any) -> Any:
    """Return AUTO, a description or a module."""
    if _is_auto(kernel):
        return AUTO
    if isinstance(kernel, tinygp.kernels.Kernel):
        return _learn_positive(kernel)
    is_module = isinstance(kernel, eqx.Module) and callable(kernel)
    return _resolve("kernel", kernel, AUTO, KERNELS, is_module, KERNEL_MODULE)


def families(kernel: Any, input_dim: int, encoder: Any, labels: bool) -> dict[str, Any]:
    """Return the kernels to choose from by name, the default first: the given one, or those of docs/priors.md."""
    if not _is_auto(kernel):
        name = next((name for name, known in KERNELS.items() if isinstance(kernel, known)), type(kernel).__name__)
        return {name: kernel}
    if labels:
        return {"linear+rbf": LinearRBFKernel()}
    if input_dim <= MAX_INDUCING_DIM and encoder is None:
        return {"inducing": InducingKernel(), "mlp": MLPKernel()}
    return {"linear+rbf": LinearRBFKernel(), "mlp": MLPKernel()}


def choose_mean(mean: Any, kernel: Any) -> Any:
    """Return the given mean, or for AUTO the kernel's default mean, a network if it has none."""
    return getattr(kernel, "default_mean", MLPMean()) if _is_auto(mean) else mean


def check_encoded(mean: Any, kernel: Any, encoder: Any) -> None:
    """Raise if the inducing prior is combined with an encoder."""
    for argument, value, inducing in (("kernel", kernel, InducingKernel), ("mean", mean, InducingMean)):
        if encoder is not None and isinstance(value, inducing):
            why = " cannot be combined with an encoder, whose training moves the inputs that its points cover. Use "
            kernels = Argument("kernel", "linear+rbf"), " or ", Argument("kernel", "linear")
            means = ", and ", Argument("mean", "linear"), " or 'mlp'."
            raise ValueError(Message(Argument(argument, "inducing"), why, *kernels, *means))


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


def _resolve(argument: str, value: Any, default: str, registry: dict[str, Any], is_custom: bool, custom: str) -> Any:
    """Return a new description by its name, a given description, or a custom function or module."""
    if isinstance(value, str) and value in registry:
        return registry[value]()
    if not isinstance(value, type) and hasattr(value, "build"):
        return value
    if not isinstance(value, type) and is_custom:
        return _as_arrays(value)
    names, example = ", ".join([default, *registry]), registry["mlp"].__name__
    kind = f"the class {value.__name__}, not an instance" if isinstance(value, type) else type(value).__name__
    found = repr(value) if isinstance(value, str) else kind
    expected = f"one of {names}, a description such as {example}(...), {custom}"
    raise ValueError(Message(Argument(argument), f" must be {expected}; got {found}."))


def _as_arrays(module: Any) -> Any:
    """Convert Python and NumPy floats to arrays, so that they are learned; integers stay as they are."""

    def is_float(leaf: Any) -> bool:
        return isinstance(leaf, float | np.floating) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f")

    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if is_float(leaf) else leaf, module)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO
