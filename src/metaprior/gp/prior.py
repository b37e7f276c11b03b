"""The GP prior of all tasks: encoder, mean, kernel and observation model, built from what a user names."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import tinygp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from metaprior.checks import check_positive
from metaprior.gp.encoders import ConvEncoder, MLPEncoder
from metaprior.gp.inducing import InducingKernel, InducingMean
from metaprior.gp.kernels import LinearKernel, LinearRBFKernel, MLPKernel, RBFKernel, compare, embed, learn_positive
from metaprior.gp.likelihoods import Bernoulli, Gaussian, Likelihood
from metaprior.gp.means import ConstantMean, LinearMean, MLPMean, ZeroMean
from metaprior.gp.networks import at_points
from metaprior.gp.parameters import Fixed, as_arrays, merge, split

MEANS = {
    "mlp": MLPMean,
    "inducing": InducingMean,
    "linear": LinearMean,
    "constant": ConstantMean,
    "zero": ZeroMean,
}
ENCODERS = {"mlp": MLPEncoder, "conv": ConvEncoder}
KERNELS = {
    "mlp": MLPKernel,
    "inducing": InducingKernel,
    "linear": LinearKernel,
    "linear+rbf": LinearRBFKernel,
    "rbf": RBFKernel,
}


AUTO = "auto"
MOST_INDUCING = 3  # input dimensions up to which "auto" takes the inducing prior


class Points(NamedTuple):
    """All that a prior says of points one by one."""

    mean: Float[Array, " n"]
    embedded: PyTree[Shaped[Array, "n ..."]]  # what the kernel compares: inputs, encoded, or features of them


class GPPrior(eqx.Module):
    """t(x) ~ GP(mu_theta(z), k_theta(z, z')) with z = encoder(x), y ~ p(y | t(x)).

    Theta is every float not held in `Fixed`. Without an encoder z is x. Inference encodes first, once per point: the
    mean and the kernel are given z, and so share what the encoder learns.
    """

    mean: Callable[..., Array]
    kernel: Callable[..., Array]
    likelihood: Likelihood
    encoder: Callable[..., Array] | None = None

    def encode(self, x: Float[Array, "n d"]) -> Float[Array, "n z"]:
        """What mean and kernel see of the inputs."""
        return x if self.encoder is None else jax.vmap(self.encoder)(x)

    def points(self, x: Float[Array, "n d"]) -> Points:
        """Evaluate every network once at every point: of one task, or of all tasks of a batch in a row."""
        encoded = x if self.encoder is None else at_points(self.encoder, x)
        return Points(at_points(self.mean, encoded), embed(self.kernel, encoded))

    def covariance(self, points: Points, others: Points | None = None) -> Float[Array, "n ..."]:
        """The covariances of two sets of points, or the variances of one."""
        return compare(self.kernel, points.embedded, None if others is None else others.embedded)


def make_prior(
    key: PRNGKeyArray, input_dim: int, mean: Any, kernel: Any, likelihood: Likelihood, encoder: Any = None
) -> GPPrior:
    """Draw a prior. `mean`, `kernel` and `encoder` are descriptions (with `build`) or finished modules."""
    mean_key, kernel_key = jax.random.split(key)
    if hasattr(encoder, "build"):
        encoder = encoder.build(jax.random.fold_in(key, 2), input_dim)  # 0 and 1 are the keys of the split above
    if encoder is not None:
        input_dim = encoded_dim(encoder, input_dim)
    return GPPrior(
        mean=mean.build(mean_key, input_dim) if hasattr(mean, "build") else mean,
        kernel=kernel.build(kernel_key, input_dim) if hasattr(kernel, "build") else kernel,
        likelihood=likelihood,
        encoder=encoder,
    )


def make_likelihood(kind: str, noise_std: Any, learn_noise: bool) -> Likelihood:
    """'bernoulli' for labels; 'gaussian' with its noise."""
    if kind == "bernoulli":
        return Bernoulli()
    log_noise_std = jnp.log(jnp.asarray(noise_std))
    return Gaussian(log_noise_std if learn_noise else Fixed(log_noise_std))


def encoded_dim(encoder: Callable[..., Array], input_dim: int) -> int:
    """The number of features an encoder makes of one input point."""
    dtype = jnp.zeros(()).dtype
    try:
        shape = eqx.filter_eval_shape(lambda: merge(*split(encoder))(jnp.zeros(input_dim, dtype))).shape
    except Exception as error:
        raise ValueError(
            f"encoder: encoder(x) of one point with {input_dim} input dimension{'s' * (input_dim != 1)} failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if len(shape) != 1 or shape[0] == 0:
        raise ValueError(f"encoder: encoder(x) of one point must have shape (n_features,), at least one; got {shape}.")
    return shape[0]


def resolve_encoder(encoder: Any) -> Any:
    """None, a description or a module from what the user passed as `encoder`."""
    return None if encoder is None else _of_one_point(encoder, ENCODERS, "encoder", "None, one of", "MLPEncoder(...)")


def resolve_mean(mean: Any) -> Any:
    """AUTO, a description or a module from what the user passed as `mean`."""
    if _is_auto(mean):
        return AUTO
    return _of_one_point(mean, MEANS, "mean", "one of auto,", "MLPMean(...)")


def resolve_kernel(kernel: Any) -> Any:
    """AUTO, a description or a module from what the user passed as `kernel`."""
    if _is_auto(kernel):
        return AUTO
    if isinstance(kernel, str):
        return _named(kernel, KERNELS, "kernel")
    if hasattr(kernel, "build") and not isinstance(kernel, type):
        return kernel
    if isinstance(kernel, tinygp.kernels.Kernel):
        return learn_positive(kernel)
    if isinstance(kernel, eqx.Module) and callable(kernel):
        return as_arrays(kernel)
    raise ValueError(
        f"kernel must be one of auto, {', '.join(KERNELS)}, a description such as MLPKernel(...), a tinygp kernel, or "
        f"an equinox module called as kernel(X1, X2) and kernel(X); got {_kind(kernel)}. "
        "A plain function of two points becomes a kernel by tinygp.kernels.Custom(function)."
    )


def families(kernel: Any, input_dim: int, encoder: Any, labels: bool) -> dict[str, Any]:
    """The kernels to choose from, by name: the given one, or for AUTO one that learns much from few tasks first.

    That is the inducing prior for readings in up to three dimensions, else linear plus RBF. For readings, networks are
    the other choice (see docs/priors.md).
    """
    if not _is_auto(kernel):
        name = next((name for name, known in KERNELS.items() if isinstance(kernel, known)), type(kernel).__name__)
        return {name: kernel}
    if labels:
        return {"linear+rbf": LinearRBFKernel()}
    if input_dim <= MOST_INDUCING and encoder is None:
        return {"inducing": InducingKernel(), "mlp": MLPKernel()}
    return {"linear+rbf": LinearRBFKernel(), "mlp": MLPKernel()}


def choose_mean(mean: Any, kernel: Any) -> Any:
    """The mean where it is left to us: the one that goes with the kernel, a network where none does."""
    return getattr(kernel, "default_mean", MLPMean()) if _is_auto(mean) else mean


def check_encoded(mean: Any, kernel: Any, encoder: Any) -> None:
    """Refuse what cannot see encoded inputs."""
    for argument, value, known in (("kernel", kernel, InducingKernel), ("mean", mean, InducingMean)):
        if encoder is not None and isinstance(value, known):
            raise ValueError(
                f"{argument}='inducing' cannot stand behind an encoder: its points are placed among the inputs before "
                "training, and an encoder moves them. Take kernel='linear+rbf', or kernel='linear' (in learned "
                "features), and mean='linear' or 'mlp'."
            )


def check_prior(prior: GPPrior, input_dim: int) -> None:
    """Evaluate the shapes of a prior, so that a mistake in an own mean or kernel is named before training."""
    prior = merge(*split(prior))
    if prior.encoder is not None:
        input_dim = encoded_dim(prior.encoder, input_dim)
    x1, x2 = jnp.zeros((2, input_dim)), jnp.zeros((3, input_dim))
    checks = [
        ("mean", "mean(x) of one point", (), lambda: prior.mean(x1[0])),
        ("kernel", "kernel(X1, X2) of 2 and 3 points", (2, 3), lambda: prior.kernel(x1, x2)),
        ("kernel", "kernel(X) of 2 points", (2,), lambda: prior.kernel(x1)),
    ]
    for argument, what, expected, evaluate in checks:
        try:
            shape = jax.eval_shape(evaluate).shape
        except Exception as error:
            raise ValueError(
                f"{argument}: {what} with {input_dim} input dimension{'s' * (input_dim != 1)} failed: "
                f"{type(error).__name__}: {error}"
            ) from error
        if shape != expected:
            raise ValueError(f"{argument}: {what} must have shape {expected}; got {shape}.")


def check_noise(noise_std: Any) -> float | None:
    """The fixed noise standard deviation, or None for 'learned'."""
    if isinstance(noise_std, str) and noise_std == "learned":
        return None
    advice = " in the units of y, or 'learned' (for data without noise: a thousandth of the spread of y)"
    return check_positive("noise_std", noise_std, advice)


def _of_one_point(value: Any, registry: dict[str, Any], argument: str, expected: str, example: str) -> Any:
    """What is evaluated at one input point: named, described, or brought as a function or module."""
    if isinstance(value, str):
        return _named(value, registry, argument)
    if not isinstance(value, type) and hasattr(value, "build"):
        return value
    if not isinstance(value, type) and callable(value):
        return as_arrays(value)
    raise ValueError(
        f"{argument} must be {expected} {', '.join(registry)}, a description such as {example}, or a function of one "
        f"input point; got {_kind(value)}."
    )


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def _kind(value: Any) -> str:
    return f"the class {value.__name__}, not an instance" if isinstance(value, type) else type(value).__name__


def _named(name: str, registry: dict[str, Any], argument: str) -> Any:
    if name not in registry:
        auto = "" if argument == "encoder" else "auto, "
        raise ValueError(f"{argument} must be one of {auto}{', '.join(registry)}, or an own one; got {name!r}.")
    return registry[name]()
