"""The inducing prior: what tasks have in common, learned as weights of functions that span a base GP.

Under the base GP t = phi(x) . w + r(x), with w ~ N(0, I) and r what its span leaves out. Tasks teach the mean of w and
its covariance, diagonal plus low rank; r stays, so that away from the data the base GP returns. The functions phi are
found from the data before training (see `gp.placement`), and are no part of theta.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import tinygp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.checks import check_integer, check_positive
from metaprior.gp.linalg import product
from metaprior.gp.means import Linear
from metaprior.gp.parameters import Fixed, Parameter

MAX_INPUTS = 8  # dimensions that points can cover
MAX_POINTS = 1024  # their covariance is factorized, and kept for every run
DEFAULT_POINTS = (24, 48, 64)  # in one, two and more dimensions
START_STD = 0.1  # of the low-rank part: it would not leave zero, where its gradient is zero


class InducingBasis(eqx.Module):
    """phi(x) = W k_0(Z, x), independent and of unit variance under k_0 = exp(-||x - x'||^2 / (2 length_scale^2)).

    W = Lambda^-1/2 U^T for k_0(Z, Z) = U Lambda U^T, largest eigenvalue first: from the smoothest function to the
    roughest. Rows of W without a function (eigenvalues lost in rounding) are zero.
    """

    points: Parameter  # Z, (m, d)
    whitening: Parameter  # W, (m, m)
    log_length_scale: Parameter  # ()
    length_scale: float | None = eqx.field(static=True)  # as asked for; None: chosen by the data

    def base(self, X1: Float[Array, "n d"], X2: Float[Array, "k d"]) -> Float[Array, "n k"]:
        """k_0."""
        difference = (X1[:, None] - X2[None]) * jnp.exp(-self.log_length_scale)
        return jnp.exp(-0.5 * jnp.sum(difference**2, axis=2))

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """phi at every point."""
        return product(self.base(X, self.points), self.whitening.T)


class BasisMean(eqx.Module):
    """mu(x) = scale * weight . phi(x) + a line."""

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
    """Points as the inducing prior sees them."""

    x: Float[Array, "n d"]
    phi: Float[Array, "n m"]
    factors: Float[Array, "n factors"]  # phi V; 1 and x times their standard deviations


class BasisKernel(tinygp.kernels.Kernel):
    """phi^T (D + V V^T) phi' + residual_scale * (k_0 - phi^T phi') + intercept and slopes, independent.

    D = diag exp(log_scale + 2 log_std), V = factor_scale * weight. Where log_std and V are zero and the two scales are
    equal, this is the base kernel, scale * k_0, and the line.
    """

    basis: InducingBasis
    weight: Float[Array, "m rank"]
    log_std: Float[Array, " m"]  # relative to the root of the scale
    log_scale: Float[Array, ""]
    log_residual_scale: Float[Array, ""]
    log_line_std: Float[Array, " line"]  # of the intercept, of the slopes
    factor_scale: float = eqx.field(static=True)

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """The kernel at one pair of points."""
        return self(X1[None], X2[None])[0, 0]

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """The kernel matrix of two sets of points, or the diagonal of one."""
        embedded = self.embed(X1)
        if X2 is None:
            return self.compare(embedded)
        return self.compare(embedded, embedded if X2 is X1 else self.embed(X2))

    def embed(self, X: Float[Array, "n d"]) -> "BasisPoints":
        """What `compare` takes in the place of points."""
        phi = self.basis(X)
        line = jnp.concatenate([jnp.ones_like(X[:, :1]), X], axis=1) * jnp.exp(self.log_line_std)[None]
        return BasisPoints(X, phi, jnp.concatenate([product(phi, self.factor_scale * self.weight), line], axis=1))

    def compare(self, E1: "BasisPoints", E2: "BasisPoints | None" = None) -> Array:
        """The kernel matrix of two sets of embedded points, or the diagonal of one."""
        residual_scale = jnp.exp(self.log_residual_scale)
        within = jnp.exp(self.log_scale + 2.0 * self.log_std) - residual_scale
        if E2 is None:
            return jnp.sum(E1.phi**2 * within[None], axis=1) + jnp.sum(E1.factors**2, axis=1) + residual_scale
        base = residual_scale * self.basis.base(E1.x, E2.x)
        if E2 is E1:  # what rounding does to k_0 - phi^T phi' may be more than the noise that keeps K + noise definite
            n, dtype = len(E1.x), E1.x.dtype
            base = base + 4.0 * n * jnp.finfo(dtype).eps * residual_scale * jnp.eye(n, dtype=dtype)
        return product(E1.phi * within[None], E2.phi.T) + product(E1.factors, E2.factors.T) + base


@dataclass(frozen=True)
class InducingMean:
    """The prior mean is a smooth function: a weighted sum of the functions of `InducingKernel`, and a line.

    `scale` is how far it varies, in units of the spread of y, before tasks are seen.
    """

    n_points: int | None = None
    length_scale: float | None = None
    scale: float = 2.0

    def __post_init__(self):
        _check_basis(self.n_points, self.length_scale)
        check_positive("scale", self.scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> BasisMean:
        """Draw the module."""
        basis = _empty_basis(self.n_points, self.length_scale, input_dim)
        line = Linear(jnp.zeros(input_dim), jnp.zeros(()), math.sqrt(input_dim))
        return BasisMean(basis, jnp.zeros(len(basis.points.value)), line, float(self.scale))


@dataclass(frozen=True)
class InducingKernel:
    """How tasks vary around their mean, in one to eight inputs: in which directions of function space, and how much.

    The directions are spanned by a base kernel, an RBF, at `n_points` inputs spread over those of the tasks (24 in one
    dimension, 48 in two, 64 in more). In them the covariance is diagonal plus `rank` learned directions; intercept and
    slopes vary on their own; around and beyond the points the base kernel is left as it is. `length_scale` is the
    base's, in standardized inputs; None chooses it by the evidence of the tasks. Hyper-priors are centered on the base
    GP, of variance `output_scale` plus a line of standard deviations `line_std`: the fewer the tasks, the nearer to it.
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
            raise ValueError(f"rank must be at most {MAX_POINTS}, the most points there can be; got {self.rank}.")
        check_positive("output_scale", self.output_scale)
        check_positive("factor_scale", self.factor_scale)
        check_positive("line_std", self.line_std)

    @property
    def default_mean(self) -> InducingMean:
        """The mean that goes with it, in the same functions."""
        return InducingMean(self.n_points, self.length_scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> BasisKernel:
        """Draw the module."""
        basis = _empty_basis(self.n_points, self.length_scale, input_dim)
        n_points = len(basis.points.value)
        start = START_STD / self.factor_scale * jax.random.normal(key, (n_points, self.rank))
        line = jnp.full(input_dim + 1, math.log(self.line_std))
        scale = jnp.asarray(math.log(self.output_scale))
        return BasisKernel(basis, start, jnp.zeros(n_points), scale, scale, line, float(self.factor_scale))


def _empty_basis(n_points: int | None, length_scale: float | None, input_dim: int) -> InducingBasis:
    """A basis of the right shapes; `gp.placement.place` fills it in."""
    if input_dim > MAX_INPUTS:
        raise ValueError(
            f"kernel='inducing' is for at most {MAX_INPUTS} input dimensions, which points can cover; the "
            f"inputs have {input_dim}. Take kernel='linear+rbf', or kernel='linear' (in learned features)."
        )
    n_points = n_points or DEFAULT_POINTS[min(input_dim, len(DEFAULT_POINTS)) - 1]
    points, whitening, log_length_scale = (
        Fixed(jnp.zeros(shape)) for shape in ((n_points, input_dim), (n_points, n_points), ())
    )
    return InducingBasis(points, whitening, log_length_scale, None if length_scale is None else float(length_scale))


def _check_basis(n_points: int | None, length_scale: float | None) -> None:
    if n_points is not None and check_integer("n_points", n_points, least=1) > MAX_POINTS:
        raise ValueError(
            f"n_points must be at most {MAX_POINTS}: the covariance of the points is factorized and kept in memory for "
            f"every candidate of a search; got {n_points}."
        )
    if length_scale is not None:
        check_positive("length_scale", length_scale, ", or None")
