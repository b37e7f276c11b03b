"""Which numbers of a prior are learned (theta) and which are fixed.

The hyper-prior p(theta): independent normals with a mean and a standard deviation per group of parameters.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.checks import SCALES, Argument, Message, is_number

Model = TypeVar("Model")
Parameter = Any  # an array, or a `Fixed` in its place until `merge`


class Fixed(eqx.Module):
    """A number of a prior that is not learned. It is traced: changing it does not recompile.

    Parameters
    ----------
    value : array-like
        The number.
    """

    value: ArrayLike


def split(model: Model) -> tuple[Model, Model]:
    """Split a prior into theta (every float array outside `Fixed`) and the rest."""
    learned = jax.tree.map(lambda leaf: not _is_fixed(leaf) and eqx.is_inexact_array(leaf), model, is_leaf=_is_fixed)
    return eqx.partition(model, learned, is_leaf=_is_fixed)


def merge(theta: Model, rest: Model) -> Model:
    """Return the prior, ready to be evaluated: every `Fixed` is replaced by its value."""
    model = eqx.combine(theta, rest, is_leaf=_is_fixed)
    return jax.tree.map(lambda leaf: leaf.value if _is_fixed(leaf) else leaf, model, is_leaf=_is_fixed)


def groups(theta: Any) -> Any:
    """Return the group of every leaf of theta by its name: 'weights' or 'biases' of networks, otherwise 'scales'."""

    def group(path: tuple[Any, ...], leaf: Any) -> str:
        name = next((key.name for key in reversed(path) if isinstance(key, jax.tree_util.GetAttrKey)), "")
        return {"weight": "weights", "bias": "biases"}.get(name, "scales")

    return jax.tree_util.tree_map_with_path(group, theta)


def cast(model: Model, dtype: Any) -> Model:
    """Convert every float array of a model to another precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if eqx.is_inexact_array(leaf) else leaf, model)


def _is_fixed(leaf: Any) -> bool:
    return isinstance(leaf, Fixed)


GROUPS = ("weights", "biases", "scales")


@runtime_checkable
class Density(Protocol):
    """A density p(theta): a module whose arrays are leaves, so that runs of one shape stack."""

    mean: PyTree  # its center, like theta
    std: PyTree  # its scale, a number per leaf of theta: no direction gets more variance than it has here

    def log_density(self, theta: PyTree) -> Float[Array, ""]:
        """Return log p(theta)."""
        ...

    def sample(self, key: PRNGKeyArray) -> PyTree:
        """Draw theta ~ p(theta)."""
        ...


@dataclass(frozen=True)
class HyperPrior:
    """Independent normal hyper-prior, `p(theta) = prod_j N(theta_j | mean_j, std_j^2)`.

    A hyper-prior of your own is an object with a method `build(theta)`, which returns a density: an Equinox module with
    `log_density(theta)`, `sample(key)`, a center `mean` and a scale `std`.

    Parameters
    ----------
    mean : "zero", "initial" or dict
        "zero" is the paper's, for weights and biases of networks; scales of kernels and noise are always centered on
        their initial values. "initial" centers all of them there. A dict gives "zero", "initial" or a number for some
        of the groups "weights", "biases" and "scales".
    std : float, dict or "auto"
        Standard deviation, the paper's sigma_P, or one for some of these groups. "auto" also tries half and twice
        1 by cross-validation.
    """

    mean: Any = "zero"
    std: Any = 1.0

    def __post_init__(self):
        check_mean(self.mean)
        check_std(self.fixed_std)

    @property
    def fixed_std(self) -> Any:
        """The standard deviation where it is not chosen by cross-validation."""
        return 1.0 if self.is_auto else self.std

    @property
    def is_auto(self) -> bool:
        """Whether the standard deviation is chosen by cross-validation."""
        return isinstance(self.std, str) and self.std == "auto"

    def scaled(self, factor: float) -> "HyperPrior":
        """Return the hyper-prior with all standard deviations times a factor."""
        return HyperPrior(self.mean, {name: factor * std for name, std in check_std(self.fixed_std).items()})

    def build(self, theta: PyTree) -> "NormalDensity":
        """Return the density of parameters with the shapes and initial values of theta."""
        return make_density(theta, check_mean(self.mean), check_std(self.fixed_std))


class NormalDensity(eqx.Module):
    """p(theta) = prod_j N(theta_j | mean_j, std_j^2), with one `std` per leaf of theta."""

    mean: PyTree
    std: PyTree

    def log_density(self, theta: PyTree) -> Float[Array, ""]:
        """Return log p(theta)."""

        def leaf_log_density(value: Array, mean: Array, std: Array) -> Array:
            constant = jnp.log(std) + 0.5 * math.log(2.0 * math.pi)
            return -0.5 * jnp.sum(((value - mean) / std) ** 2) - value.size * constant

        return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(leaf_log_density, theta, self.mean, self.std))))

    def sample(self, key: PRNGKeyArray) -> PyTree:
        """Draw theta ~ p(theta)."""
        flat, unravel = jax.flatten_util.ravel_pytree(self.mean)
        noise = unravel(jax.random.normal(key, flat.shape, flat.dtype))  # one draw compiles quickly
        return jax.tree.map(lambda mean, std, draw: mean + std * draw, self.mean, self.std, noise)


def check_density(density: Any, theta: PyTree) -> None:
    """Raise unless what a hyper-prior of a user's own builds is a density of theta."""
    asked = ("log_density", "sample", "mean", "std")
    if lacking := [name for name in asked if not hasattr(density, name)]:
        has = f".build(theta) must return a density with {', '.join(asked)}; {type(density).__name__} lacks "
        raise ValueError(Message(Argument("hyperprior"), f"{has}{', '.join(lacking)}."))
    if jax.tree.structure(density.std) != jax.tree.structure(theta):
        raise ValueError(Message(Argument("hyperprior"), ": std of a density must have a number per leaf of theta."))
    for name, value in (("mean", lambda: density.mean), ("sample(key)", lambda: density.sample(jax.random.key(0)))):
        if not _alike(jax.eval_shape(value), theta):
            raise ValueError(Message(Argument("hyperprior"), f": {name} of a density must have the shapes of theta."))
    if (shape := jax.eval_shape(density.log_density, theta).shape) != ():
        raise ValueError(Message(Argument("hyperprior"), f": log_density(theta) must be a number; got shape {shape}."))


def _alike(tree: PyTree, theta: PyTree) -> bool:
    """Return whether a pytree has the structure and the shapes of another."""
    leaves = jax.tree.leaves(tree), jax.tree.leaves(theta)
    same = jax.tree.structure(tree) == jax.tree.structure(theta)
    return same and all(jnp.shape(leaf) == jnp.shape(like) for leaf, like in zip(*leaves, strict=True))


def make_density(theta: PyTree, mean: Mapping[str, Any], std: Mapping[str, Any]) -> NormalDensity:
    """Return p(theta) with the mean ('initial' or a number) and the standard deviation of each group."""
    names = groups(theta)
    means = jax.tree.map(
        lambda leaf, name: leaf if mean[name] == "initial" else jnp.full_like(leaf, mean[name]), theta, names
    )
    stds = jax.tree.map(lambda leaf, name: jnp.asarray(std[name], leaf.dtype), theta, names)
    return NormalDensity(means, stds)


def check_mean(mean: Any) -> dict[str, Any]:
    """Return the mean of each group. 'zero' (the paper) is for networks: scales are centered on their initial value."""
    if isinstance(mean, str) and mean == "zero":
        return {"weights": 0.0, "biases": 0.0, "scales": "initial"}
    if isinstance(mean, str) and mean == "initial":
        return dict.fromkeys(GROUPS, "initial")
    if isinstance(mean, Mapping):
        means = {**check_mean("zero"), **_known_groups(mean, "mean")}
        named = {"zero": 0.0, "initial": "initial"}
        means = {name: named.get(mean, mean) if isinstance(mean, str) else mean for name, mean in means.items()}
        numbers = [mean for mean in means.values() if not (isinstance(mean, str) and mean == "initial")]
        if all(is_number(mean) and abs(mean) <= SCALES[1] for mean in numbers):
            return means
    raise ValueError(
        "mean must be 'zero', 'initial', or a mapping from group (weights, biases, scales) to 'zero', "
        f"'initial' or a number of at most {SCALES[1]:g}; got {mean!r}."
    )


def check_std(std: Any) -> dict[str, float]:
    """Return the standard deviation of each group, from one number or a mapping (1 for groups that it lacks)."""
    stds: dict[str, Any] = dict.fromkeys(GROUPS, 1.0 if isinstance(std, Mapping) else std)
    if isinstance(std, Mapping):
        stds |= _known_groups(std, "std")
    if not all(is_number(std) and SCALES[0] <= std <= SCALES[1] for std in stds.values()):
        expected = "a positive number, or a mapping from group (weights, biases, scales) to positive numbers, or 'auto'"
        between = f"numbers lie between {SCALES[0]:g} and {SCALES[1]:g}"
        raise ValueError(Message(Argument("std"), f" must be {expected} ({between}); got {std!r}."))
    return {name: float(std) for name, std in stds.items()}


def _known_groups(given: Mapping[str, Any], argument: str) -> dict[str, Any]:
    unknown = set(given) - set(GROUPS)
    if unknown:
        raise ValueError(f"{argument} must have groups weights, biases, scales; got {sorted(map(str, unknown))}.")
    return dict(given)
