"""The tensors of priors that were trained by gradients, to and from saved files."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from metaprior.prediction.ensemble import Ensemble
from metaprior.schema import MAX_NUMBER, Mismatch, check_weights, describe
from metaprior.tasks.scaling_arrays import read_scaling
from metaprior.wfem.fit import adjust_label_mean, resolve_families, resolve_parameters
from metaprior.wfem.forked import check_not_forked
from metaprior.wfem.inference import MAP, Laplace, resolve_inference
from metaprior.wfem.runs import Settings, draw_prior, scaling_template
from metaprior.wfem.trained import Model

WHITENING, WHITENING_ERROR = "whitening.value", 0.1  # far above rounding


def model_parts(model: Ensemble) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is stored of a model: nothing as JSON, and tensors."""
    leaves = jax.tree_util.tree_flatten_with_path(model._replace(spread=1.0))[0]
    return {}, {_tensor_name(where): np.asarray(leaf) for where, leaf in leaves if hasattr(leaf, "shape")}


def read_model(meta: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Ensemble:
    """Return the model of an estimator from a file; its structure follows from the parameters of the estimator."""
    check_not_forked()
    fitted, input_dim, n_members = header["fitted"], header["input_dim"], header["n_members"]
    check_weights("model.weights", tensors.get("model.weights"), n_members)
    kinds = meta.features_.kinds
    for i in range(n_members):  # before anything of this size is made
        read_scaling(tensors, f"model.members[{i}].scaling.", input_dim, header["training"]["scaling"], kinds)
    width = input_dim if kinds is None else sum(kinds.widths)
    if meta.likelihood not in ("gaussian", "bernoulli"):
        raise Mismatch(f"a prior trained by gradients cannot have likelihood {meta.likelihood!r}")
    settings = replace(_settings(meta, fitted["family_"], width), kinds=kinds)
    settings = replace(settings, noise_std=None if settings.noise_std is None else 1.0)  # for its shape
    with jax.enable_x64(fitted["dtype_"] == "float64"):
        dtype = jnp.zeros(()).dtype
        particles, rest, _ = eqx.filter_eval_shape(draw_prior, jax.random.key(0), width, settings, 1.0, dtype)
        member = Model(particles, rest, scaling_template(input_dim, settings))
        model = _fill(Ensemble((member,) * n_members, np.zeros(n_members)), tensors)
    for name in tensors:
        if name.endswith(WHITENING):
            _check_basis(tensors, name.removesuffix(WHITENING))
    return model


def _settings(meta: Any, family: str, input_dim: int) -> Settings:
    """Return the settings of the kernel that a file names."""
    settings = resolve_parameters(meta)
    if meta.likelihood == "bernoulli":
        settings = adjust_label_mean(settings, meta.classes_)
    known = resolve_families(meta, settings, input_dim, resolve_inference(meta.inference))
    if family not in known:
        raise Mismatch(f"it names a kernel {family!r} that its parameters do not allow")
    settings = known[family]
    if isinstance(settings.method, Laplace):  # its draws are saved
        return replace(settings, method=MAP(), n_particles=settings.method.n_draws)
    return settings


def _fill(template: Ensemble, tensors: dict[str, np.ndarray]) -> Ensemble:
    """Fill the template with the file's arrays; raise if a shape or precision differs, or a number cannot be."""

    def place(where: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        name = _tensor_name(where)
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != leaf.shape or tensor.dtype != leaf.dtype:
            raise Mismatch(f"{name} must be {leaf.dtype}{list(leaf.shape)}; the file has {describe(tensor)}")
        if tensor.dtype.kind == "f" and not (np.abs(tensor) <= _largest(name, tensor.dtype)).all():  # NaN is not
            raise Mismatch(f"{name} must have finite numbers of at most {_largest(name, tensor.dtype):g}")
        return tensor

    return jax.tree_util.tree_map_with_path(place, template)


def _check_basis(tensors: dict[str, np.ndarray], name: str) -> None:
    """Raise unless the functions of an inducing basis have at most unit variance, as W k(Z, Z) W' shows.

    Otherwise what the kernel leaves beside them would have a negative variance.
    """
    points, whitening, log_length_scale = (
        np.asarray(tensors[f"{name}{part}.value"], np.float64) for part in ("points", "whitening", "log_length_scale")
    )
    distances = np.sum((points[:, None] - points[None]) ** 2, axis=2) * np.exp(-2.0 * log_length_scale)
    if np.linalg.eigvalsh(whitening @ np.exp(-0.5 * distances) @ whitening.T).max() > 1.0 + WHITENING_ERROR:
        raise Mismatch(f"{name}whitening does not fit its points")


def _largest(name: str, dtype: np.dtype) -> float:
    """Return the largest number whose square, or the square of whose exponential, the precision can hold."""
    if ".scaling." in name:
        return MAX_NUMBER
    root = float(np.sqrt(np.finfo(dtype).max)) / 2.0
    return float(np.log(root)) if ".log_" in name else root


def _tensor_name(where: Any) -> str:
    return f"model{jax.tree_util.keystr(where)}"
