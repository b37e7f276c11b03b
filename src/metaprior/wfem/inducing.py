"""The inducing prior: mean and covariance of the weights of functions that span a base GP, learned across tasks.

Under the base GP t(x) = phi(x) . w + r(x), with w ~ N(0, I) and r the part outside the span of phi. Training learns
the mean of w and its covariance, diagonal plus low rank. The residual r stays, so that the prior returns to the base GP
away from the data. The functions phi are chosen from the data before training (see `gp.placement`).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import tinygp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.checks import Argument, Message, check_integer, check_positive
from metaprior.wfem.linalg import product
from metaprior.wfem.means import Linear
from metaprior.wfem.parameters import Fixed, Parameter

MAX_INPUT_DIM = 8  # points cannot cover more dimensions
MAX_POINTS = 1024  # their covariance is factorized, and kept for every run
DEFAULT_POINTS = (24, 48, 64)  # in one, two and more dimensions
INITIAL_FACTOR_STD = 0.1  # not zero, where the gradient of the low-rank part is zero


class InducingBasis(eqx.Module):
    """phi(x) = W k_0(Z, x), independent and of unit variance under k_0 = exp(-||x - x'||^2 / (2 length_scale^2)).

    W = Lambda^-1/2 U^T for k_0(Z, Z) = U Lambda U^T, largest eigenvalue first: from the smoothest function to the
    roughest. Rows of W for eigenvalues lost in rounding are zero.
    """

    points: Parameter  # Z, (m, d)
    whitening: Parameter  # W, (m, m)
    log_length_scale: Parameter  # ()
    length_scale: float | None = eqx.field(static=True)  # as given; None: chosen from the data

    def base(self, X1: Float[Array, "n d"], X2: Float[Array, "k d"]) -> Float[Array, "n k"]:
        """Return k_0(X1, X2)."""
        difference = (X1[:, None] - X2[None]) * jnp.exp(-self.log_length_scale)
        return jnp.exp(-0.5 * jnp.sum(difference**2, axis=2))

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """Return phi at every point."""
        return product(self.base(X, self.points), self.whitening.T)


class BasisMean(eqx.Module):
    """mu(x) = scale * weight . phi(x) + line(x)."""

    basis: InducingBasis
    weight: Float[Array, " m"]
    line: Linear
    scale: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Evaluate at one point."""
        return self.at_points(x[None])[0]

    def at_points(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Evaluate at many points at once."""
        return self.scale * jnp.sum(self.weight[None] * self.basis(X), axis=1) + jax.vmap(self.line)(X)


class BasisPoints(NamedTuple):
    """Points as embedded by `BasisKernel`."""

    x: Float[Array, "n d"]
    phi: Float[Array, "n m"]
    factors: Float[Array, "n factors"]  # phi V; 1 and x times their standard deviations


class BasisKernel(tinygp.kernels.Kernel):
    """phi^T (D + V V^T) phi' + residual_scale * (k_0 - phi^T phi') + an independent intercept and slopes.

    D = diag exp(log_scale + 2 log_std), V = factor_scale * weight. If log_std and V are zero and the two scales are
    equal, this is scale * k_0 and the line.
    """

    basis: InducingBasis
    weight: Float[Array, "m rank"]
    log_std: Float[Array, " m"]  # relative to the square root of the scale
    log_scale: Float[Array, ""]
    log_residual_scale: Float[Array, ""]
    log_line_std: Float[Array, " line"]  # of the intercept and the slopes
    factor_scale: float = eqx.field(static=True)

    @property
    def magnitude(self) -> Float[Array, ""]:
        """Size of the residual's terms k_0 and phi^T phi', whose rounding errors remain where they cancel."""
        return jnp.exp(self.log_residual_scale)

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """Evaluate at one pair of points."""
        return self(X1[None], X2[None])[0, 0]

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """Return the kernel matrix, or its diagonal."""
        embedded = self.embed(X1)
        if X2 is None:
            return self.compare(embedded)
        return self.compare(embedded, embedded if X2 is X1 else self.embed(X2))

    def embed(self, X: Float[Array, "n d"]) -> BasisPoints:
        """Return phi and the low-rank factors of every point."""
        phi = self.basis(X)
        line = jnp.concatenate([jnp.ones_like(X[:, :1]), X], axis=1) * jnp.exp(self.log_line_std)[None]
        return BasisPoints(X, phi, jnp.concatenate([product(phi, self.factor_scale * self.weight), line], axis=1))

    def compare(self, E1: BasisPoints, E2: BasisPoints | None = None) -> Array:
        """Return the kernel matrix of embedded points, or its diagonal."""
        residual_scale = jnp.exp(self.log_residual_scale)
        within = jnp.exp(self.log_scale + 2.0 * self.log_std) - residual_scale
        if E2 is None:
            return jnp.sum(E1.phi**2 * within[None], axis=1) + jnp.sum(E1.factors**2, axis=1) + residual_scale
        base = residual_scale * self.basis.base(E1.x, E2.x)
        return product(E1.phi * within[None], E2.phi.T) + product(E1.factors, E2.factors.T) + base


@dataclass(frozen=True)
class InducingMean:
    """Smooth mean, `mu(x) = scale * w . phi(x) + a . x + b` in the basis phi of `InducingKernel`.

    Parameters
    ----------
    n_points, length_scale : int, float, optional
        As for `InducingKernel`.
    scale : float
        How far the smooth function varies a priori, in units of the spread of y.
    """

    n_points: int | None = None
    length_scale: float | None = None
    scale: float = 2.0

    def __post_init__(self):
        _check_basis(self.n_points, self.length_scale)
        check_positive("scale", self.scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> BasisMean:
        """Return the module, its basis to be filled in by `gp.placement.place_points`."""
        basis = _empty_basis(self.n_points, self.length_scale, input_dim)
        line = Linear(jnp.zeros(input_dim), jnp.zeros(()), math.sqrt(input_dim))
        return BasisMean(basis, jnp.zeros(len(basis.points.value)), line, float(self.scale))


@dataclass(frozen=True)
class InducingKernel:
    """Kernel `phi(x)^T (D + V V^T) phi(x') + s * (k_0(x, x') - phi(x)^T phi(x')) + a line`, in 1 to 8 input dimensions.

    It learns in which directions of function space tasks vary around their mean, and how much. The functions phi span
    an RBF kernel k_0 at points spread over the inputs of the tasks. D, V, s and the variances of intercept and slopes
    are learned. The fewer the tasks, the closer the prior stays to the base GP.

    Parameters
    ----------
    n_points : int, optional
        Number of points; by default 24 in one input dimension, 48 in two, 64 in more.
    rank : int
        Number of learned directions, the columns of V.
    length_scale : float, optional
        Length scale of k_0 in standardized inputs; by default chosen by the evidence of the tasks.
    output_scale : float
        Variance of the base GP, on which the hyper-prior is centered.
    factor_scale : float
        Scale of the entries of V a priori.
    line_std : float
        Standard deviation of intercept and slopes, on which the hyper-prior is centered.
    """

    n_points: int | None = None
    rank: int = 4
    length_scale: float | None = None
    output_scale: float = 1.0
    factor_scale: float = 0.5
    line_std: float = 1.0

    def __post_init__(self):
        _check_basis(self.n_points, self.length_scale)
        if check_integer("rank", self.rank, least=1) > MAX_POINTS:
            raise ValueError(f"rank must be at most {MAX_POINTS}, the largest number of points; got {self.rank}.")
        check_positive("output_scale", self.output_scale)
        check_positive("factor_scale", self.factor_scale)
        check_positive("line_std", self.line_std)

    @property
    def default_mean(self) -> InducingMean:
        """The mean used with this kernel by default, in the same basis."""
        return InducingMean(self.n_points, self.length_scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> BasisKernel:
        """Draw the initial V; the basis is to be filled in by `gp.placement.place_points`."""
        basis = _empty_basis(self.n_points, self.length_scale, input_dim)
        n_points = len(basis.points.value)
        weight = INITIAL_FACTOR_STD / self.factor_scale * jax.random.normal(key, (n_points, self.rank))
        line = jnp.full(input_dim + 1, math.log(self.line_std))
        scale = jnp.asarray(math.log(self.output_scale))
        return BasisKernel(basis, weight, jnp.zeros(n_points), scale, scale, line, float(self.factor_scale))


def _empty_basis(n_points: int | None, length_scale: float | None, input_dim: int) -> InducingBasis:
    """Return a basis of the right shapes, filled with zeros."""
    if input_dim > MAX_INPUT_DIM:
        found = f" supports at most {MAX_INPUT_DIM} input dimensions; the inputs have {input_dim}. Use "
        others = (Argument("kernel", "linear+rbf"), ", or ", Argument("kernel", "linear"), " (in learned features).")
        raise ValueError(Message(Argument("kernel", "inducing"), found, *others))
    n_points = n_points or DEFAULT_POINTS[min(input_dim, len(DEFAULT_POINTS)) - 1]
    shapes = (n_points, input_dim), (n_points, n_points), ()
    points, whitening, log_length_scale = (Fixed(jnp.zeros(shape)) for shape in shapes)
    return InducingBasis(points, whitening, log_length_scale, None if length_scale is None else float(length_scale))


def _check_basis(n_points: int | None, length_scale: float | None) -> None:
    if n_points is not None and check_integer("n_points", n_points, least=1) > MAX_POINTS:
        raise ValueError(f"n_points must be at most {MAX_POINTS}, since memory grows with its square; got {n_points}.")
    if length_scale is not None:
        check_positive("length_scale", length_scale, ", or None")
