"""From theta to the covariances and mean features of tasks, and from their derivatives back to theta."""

from dataclasses import dataclass

import numpy as np

from metaprior.prior.blocks import Block
from metaprior.prior.collapse import Gaussians
from metaprior.prior.correlations import correlation_slopes
from metaprior.prior.covariate_curves import N_FUNCTIONS
from metaprior.prior.covariate_curves import functions as covariate_functions
from metaprior.prior.layout import N_BENT, Layout, sums_of_groups
from metaprior.prior.small_matrices import cholesky, triangular_inverse

JITTER = 1e-6  # of the kernel between inducing points, relative to its variance
NOISE_FLOOR = 1e-8  # of the noise variance, relative to the variance of y


@dataclass(frozen=True, eq=False)
class Basis:
    """The common curve mu as mean weights of whitened functions: s k(x, Z) L^-T, where L L' = k(Z, Z)."""

    root: np.ndarray  # L
    inverse_root: np.ndarray  # L^-1
    kernel: np.ndarray  # k(Z, Z) without jitter
    scale: float  # s
    lengths: np.ndarray  # (variables or 1,)

    def functions(self, kernel: np.ndarray) -> np.ndarray:
        """Return the functions at inputs with this kernel k(x, Z)."""
        return kernel @ (self.scale * self.inverse_root.T)


def rbf(squared_distances: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return exp(-r^2 / 2) from squared distances along every input."""
    scales = -0.5 * lengths**-2.0
    return np.exp(squared_distances[..., 0] * scales[0] if len(scales) == 1 else squared_distances @ scales)


def rbf_between(x: np.ndarray, z: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the kernel (..., n, m) between inputs x (..., n, d) and z (..., m, d), without storing distances."""
    scale = 1.0 / (lengths if len(lengths) == x.shape[-1] else np.full(x.shape[-1], lengths[0]))
    x, z = x * scale, z * scale
    total = np.subtract(x[..., :, None, 0], z[..., None, :, 0])
    np.square(total, out=total)
    for j in range(1, x.shape[-1]):
        difference = np.subtract(x[..., :, None, j], z[..., None, :, j])
        total += np.square(difference, out=difference)
    total *= -0.5
    return np.exp(total, out=total)


def make_basis(layout: Layout, theta: np.ndarray, point_distances: np.ndarray) -> Basis | None:
    """Return the basis of the common curve, given squared distances between the inducing points."""
    if not layout.parts.smooth:
        return None
    lengths = layout.scale(theta, "mean_lengths")
    kernel = rbf(point_distances, lengths)
    root = cholesky(kernel + JITTER * np.eye(len(kernel)))
    return Basis(root, triangular_inverse(root), kernel, float(layout.scale(theta, "mean")[0]), lengths)


def whitening(point_distances: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return L^-T, where L L' is the kernel between the inducing points: k(x, Z) L^-T are whitened functions."""
    kernel = rbf(point_distances, lengths)
    return triangular_inverse(cholesky(kernel + JITTER * np.eye(len(kernel)))).T


def mean_features(layout: Layout, theta: np.ndarray, basis: Basis | None, block: Block) -> np.ndarray:
    """Return F: the common line, curve and features, effects of covariates, and all again for the target.

    The last only with an environment effect.
    """
    parts = [block.line * layout.trend_stds(theta)]
    if basis is not None:
        parts.append(basis.functions(rbf(block.to_points, basis.lengths)) * block.mask[..., None])
    if layout.parts.features:
        assert block.features is not None
        parts.append(layout.scale(theta, "feature_mean")[0] * block.features)
    curve = None if basis is None else parts[1]
    parts += covariate_features(layout, theta, block.covariates, block.inputs, curve)
    if layout.parts.curved:
        parts[-1] *= block.mask[..., None]  # curves are not zero where covariates are
    features = np.concatenate(parts, axis=-1)
    if layout.parts.environment:
        own = layout.scale(theta, "environment")[0] * block.is_target[:, None, None] * features
        features = np.concatenate([features, own], axis=-1)
    return features


def covariate_features(
    layout: Layout, theta: np.ndarray, covariates: np.ndarray, inputs: np.ndarray, curve: np.ndarray | None
) -> list[np.ndarray]:
    """Return the features by which covariates z change the mean, given the functions of the common curve."""
    parts = []
    if layout.parts.covariates:
        parts.append(covariates * np.repeat(layout.scale(theta, "covariates"), layout.covariates))
    if layout.parts.bend:
        scaled = covariates[..., layout.bent] * np.repeat(layout.scale(theta, "bend"), layout.bent_widths)
        functions = inputs[..., : layout.n_numbers]
        if curve is not None:
            functions = np.concatenate([functions, curve[..., :N_BENT]], axis=-1)
        products = scaled[..., :, None] * functions[..., None, :]
        parts.append(products.reshape(*products.shape[:-2], scaled.shape[-1] * functions.shape[-1]))
    if layout.parts.curved:
        parts.append(
            covariate_functions(covariates, layout.curved) * np.repeat(layout.scale(theta, "curved"), N_FUNCTIONS)
        )
    return parts


def deviations(layout: Layout, theta: np.ndarray, block: Block) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the covariance of a task around the common mean, without noise, and its smooth part."""
    if layout.n_correlated > 1:
        own = layout.own_lines(theta, block.line)
        covariance = own @ np.swapaxes(own, 1, 2)
    else:
        covariance = (block.line * layout.line_stds(theta) ** 2) @ np.swapaxes(block.line, 1, 2)
    for name, functions in _own_functions(layout, block):
        covariance += (functions * layout.scale(theta, name) ** 2) @ np.swapaxes(functions, 1, 2)
    if not layout.parts.smooth:
        return covariance, None
    smooth = layout.scale(theta, "deviation")[0] ** 2 * rbf(block.between, layout.scale(theta, "lengths"))
    smooth *= block.mask[:, :, None] * block.mask[:, None, :]
    return covariance + smooth, smooth


def add_noise(
    covariance: np.ndarray,
    mask: np.ndarray,
    noise_variance: float | np.ndarray,
    relative_floor: float | np.ndarray = 0.0,
) -> np.ndarray:
    """Add noise, of all readings or (tasks, n), to the diagonal of covariances, and make that of padding one; in place.

    `relative_floor` is the least noise of a reading as a share of its variance, for all tasks or (tasks, 1).
    """
    diagonal = np.arange(covariance.shape[1])
    noise = np.maximum(noise_variance + NOISE_FLOOR, relative_floor * covariance[:, diagonal, diagonal])
    covariance[:, diagonal, diagonal] += mask * noise + (1.0 - mask)
    return covariance


def noise_of(block: Block, noise_variance: float) -> float | np.ndarray:
    """Return the noise variance, of all readings or of each, (tasks, n)."""
    return noise_variance if block.noise is None else noise_variance + block.noise


def gaussians(
    layout: Layout, theta: np.ndarray, basis: Basis | None, block: Block
) -> tuple[Gaussians, np.ndarray | None]:
    """Return the readings of a block given the mean's weights, and the smooth part of their covariance."""
    covariance, smooth = deviations(layout, theta, block)
    covariance = add_noise(covariance, block.mask, noise_of(block, layout.noise_variance(theta)))
    features = mean_features(layout, theta, basis, block)
    return Gaussians(block.y, features, covariance, block.counts), smooth


def pull_back(
    layout: Layout,
    theta: np.ndarray,
    basis: Basis | None,
    block: Block,
    features: np.ndarray,
    smooth: np.ndarray | None,
    of_covariance: np.ndarray,
    of_features: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivative of J with respect to theta, from those by a block's covariances and mean features.

    The second result is the derivative by the root L of k(Z, Z), which the blocks share.
    """
    gradient, places = np.zeros(len(theta)), layout.places
    if layout.log_noise is None:
        trace = np.sum(np.diagonal(of_covariance, axis1=1, axis2=2) * block.mask)
        gradient[places["noise"]] = 2.0 * layout.noise_variance(theta) * trace
    _line_slopes(gradient, layout, theta, block.line, of_covariance)
    for name, functions in _own_functions(layout, block):
        gradient[places[name]] = 2.0 * layout.scale(theta, name) ** 2 * _column_sums(of_covariance, functions)
    if layout.parts.environment:
        half = features.shape[-1] // 2
        own = of_features[..., half:] * block.is_target[:, None, None]
        gradient[places["environment"]] = layout.scale(theta, "environment")[0] * np.sum(own * features[..., :half])
        of_features, features = without_environment(layout, theta, block, of_features), features[..., :half]
    slices = layout.mean_slices(0 if basis is None else len(basis.root))
    by_feature = np.sum(of_features * features, axis=(0, 1))
    of_columns = by_feature[slices["line"]][1:]
    if layout.has_trend:
        gradient[places["trend"]] = of_columns[: layout.n_numbers].sum()
    if "levels" in places:
        gradient[places["levels"]] = layout.by_variable(of_columns)[layout.n_numbers :]
    if layout.parts.features:
        gradient[places["feature_mean"]] = by_feature[slices["features"]].sum()
    if layout.parts.covariates:
        gradient[places["covariates"]] = sums_of_groups(by_feature[slices["covariates"]], layout.covariates)
    if layout.parts.bend:
        by_column = by_feature[slices["bend"]].reshape(len(layout.bent), -1).sum(axis=1)
        gradient[places["bend"]] = sums_of_groups(by_column, layout.bent_widths)
    if layout.parts.curved:
        gradient[places["curved"]] = by_feature[slices["curved"]].reshape(-1, N_FUNCTIONS).sum(axis=1)
    if smooth is None or basis is None:
        return gradient, np.zeros((0, 0))
    weighted = of_covariance * smooth
    gradient[places["deviation"]] = 2.0 * weighted.sum()
    lengths = layout.scale(theta, "lengths")
    gradient[places["lengths"]] = _total(weighted, block.between) / lengths**2
    curve = slices["curve"]
    by_curve = of_features[..., curve] + _bent_slopes(layout, theta, block, of_features[..., slices["bend"]], curve)
    return _curve_slopes(gradient, layout, basis, block, features[..., curve], by_curve)


def _line_slopes(
    gradient: np.ndarray, layout: Layout, theta: np.ndarray, line: np.ndarray, of_covariance: np.ndarray
) -> None:
    """Set the derivatives by the scales and correlations of the tasks' own lines.

    The root of their covariance is R = diag(s) C, so that dJ/dlog s_i = sum_j (dJ/dR)_ij R_ij, and dJ/dC = s dJ/dR.
    """
    size = layout.n_correlated
    if size > 1:
        stds, root = layout.line_stds(theta), layout.line_root(theta)
        of_root = 2.0 * np.tensordot(line, of_covariance @ line, axes=((0, 1), (0, 1))) @ root
        by_line, place = np.sum(of_root * root, axis=1), layout.places["correlations"]
        gradient[place] = correlation_slopes(theta[place], size, (stds[:, None] * of_root)[:size, :size])
    else:
        by_line = 2.0 * layout.line_stds(theta) ** 2 * _column_sums(of_covariance, line)
    by_variable = layout.by_variable(by_line[1:])
    gradient[layout.places["line"]] = [by_line[0], *(by_variable if layout.ard else [by_variable.sum()])]


def _bent_slopes(
    layout: Layout, theta: np.ndarray, block: Block, by_products: np.ndarray, curve: slice
) -> np.ndarray | float:
    """Return the derivative by the functions of the common curve, through their products with covariates."""
    if not layout.parts.bend:
        return 0.0
    scaled = block.covariates[..., layout.bent] * np.repeat(layout.scale(theta, "bend"), layout.bent_widths)
    of_each = by_products.reshape(*scaled.shape, -1)[..., layout.n_numbers :]
    found = np.zeros((*scaled.shape[:-1], curve.stop - curve.start))
    found[..., : of_each.shape[-1]] = np.sum(scaled[..., None] * of_each, axis=-2)
    return found


def _curve_slopes(
    gradient: np.ndarray, layout: Layout, basis: Basis, block: Block, functions: np.ndarray, slopes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Add the derivatives by the scale and length scales of mu; return the derivative by the root L of k(Z, Z) too.

    With W = s K L^-T: dJ/dK = s H L^-1, and dJ/dL = -L^-T (s H'K) L^-T, pulled back through the Cholesky factor.
    """
    gradient[layout.places["mean"]] = np.sum(slopes * functions)
    kernel = rbf(block.to_points, basis.lengths) * block.mask[..., None]
    weighted = basis.scale * (slopes @ basis.inverse_root) * kernel
    gradient[layout.places["mean_lengths"]] = _total(weighted, block.to_points) / basis.lengths**2
    n_points = len(basis.root)
    of_inverse = basis.scale * (slopes.reshape(-1, n_points).T @ kernel.reshape(-1, n_points))
    return gradient, -basis.inverse_root.T @ of_inverse @ basis.inverse_root.T


def without_environment(layout: Layout, theta: np.ndarray, block: Block, of_features: np.ndarray) -> np.ndarray:
    """Return the derivative of J by the mean features of all environments, given that by F."""
    if not layout.parts.environment:
        return of_features
    common, own = np.split(of_features, 2, axis=-1)
    return common + layout.scale(theta, "environment")[0] * block.is_target[:, None, None] * own


def feature_slopes(
    layout: Layout, theta: np.ndarray, block: Block, of_covariance: np.ndarray, of_features: np.ndarray
) -> np.ndarray:
    """Return the derivative of J by the features of the network, (tasks, n, n_features).

    They are in C as phi diag(s^2) phi', and in F as t phi: dJ/dphi = 2 (dJ/dC) phi diag(s^2) + t dJ/d(t phi).
    """
    assert block.features is not None
    place = layout.mean_slices(block.to_points.shape[2])["features"]
    by_mean = without_environment(layout, theta, block, of_features)[..., place]
    slopes = 2.0 * (of_covariance @ block.features) * layout.scale(theta, "features") ** 2
    return (slopes + layout.scale(theta, "feature_mean")[0] * by_mean) * block.mask[..., None]


def point_slopes(basis: Basis, of_root: np.ndarray, point_distances: np.ndarray) -> np.ndarray:
    """Return the derivative by the logarithm of mu's length scales through L, given that by L, (d or 1,)."""
    inner = np.tril(basis.root.T @ np.tril(of_root))
    inner[np.diag_indices_from(inner)] *= 0.5
    of_kernel = basis.inverse_root.T @ inner @ basis.inverse_root
    of_kernel = 0.5 * (of_kernel + of_kernel.T) * basis.kernel
    return _total(of_kernel, point_distances) / basis.lengths**2


def _own_functions(layout: Layout, block: Block) -> list[tuple[str, np.ndarray]]:
    """Return the functions, besides the line, whose weights differ between tasks, by the names of their scales."""
    known = (("curve", block.curve), ("features", block.features))
    return [(name, functions) for name, functions in known if name in layout.places and functions is not None]


def _total(weights: np.ndarray, squared_distances: np.ndarray) -> np.ndarray:
    """Return the weighted sum of squared distances along every input."""
    return weights.ravel() @ squared_distances.reshape(weights.size, -1)


def _column_sums(of_covariance: np.ndarray, functions: np.ndarray) -> np.ndarray:
    """Return f' G f for every function f, summed over tasks."""
    return np.sum((of_covariance @ functions) * functions, axis=(0, 1))
