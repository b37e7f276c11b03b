"""The tensors of priors that were trained by gradients, to and from saved files."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from metaprior.estimators.gradient import adjust_label_mean, resolve_families, resolve_parameters
from metaprior.files import InvalidFile
from metaprior.meta.methods import MAP, Laplace, resolve_inference
from metaprior.meta.runs import Settings, draw_prior, scaling_template
from metaprior.prediction.ensemble import Ensemble
from metaprior.prediction.trained import Model


def model_parts(model: Ensemble) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is stored of a model, as JSON (nothing) and as tensors."""
    leaves = jax.tree_util.tree_flatten_with_path(model._replace(spread=1.0))[0]
    return {}, {_tensor_name(where): np.asarray(leaf) for where, leaf in leaves if hasattr(leaf, "shape")}


def read_model(meta: Any, path: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Ensemble:
    """Return the model of an estimator from a file; its structure follows from the parameters of the estimator."""
    fitted, input_dim, n_members = header["fitted"], header["input_dim"], header["n_members"]
    settings = _settings(meta, path, fitted["family_"], input_dim)
    with jax.enable_x64(fitted["dtype_"] == "float64"):
        dtype = jnp.zeros(()).dtype
        particles, rest, _ = eqx.filter_eval_shape(draw_prior, jax.random.key(0), input_dim, settings, 1.0, dtype)
        member = Model(particles, rest, scaling_template(input_dim, settings))
        return _fill(path, Ensemble((member,) * n_members, np.zeros(n_members)), tensors)


def _settings(meta: Any, path: Any, family: Any, input_dim: int) -> Settings:
    """Return the settings of the kernel that a file names."""
    try:
        settings = resolve_parameters(meta)
    except (TypeError, ValueError) as error:
        raise InvalidFile(f"{path} is damaged: {error}") from None
    if meta.likelihood == "bernoulli":
        settings = adjust_label_mean(settings, meta.classes_)
    known = resolve_families(meta, settings, input_dim, resolve_inference(meta.inference))
    if not isinstance(family, str) or family not in known:
        raise InvalidFile(f"{path} is damaged: it names a kernel {family!r} that its parameters do not allow.")
    settings = known[family]
    if isinstance(settings.method, Laplace):  # its draws are saved
        return replace(settings, method=MAP(), n_particles=settings.method.n_draws)
    return settings


def _fill(path: Any, template: Ensemble, tensors: dict[str, np.ndarray]) -> Ensemble:
    """Fill the template with the file's arrays; raise if any shape or precision differs."""

    def place(where: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        name = _tensor_name(where)
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != leaf.shape or tensor.dtype != leaf.dtype:
            came = "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
            raise InvalidFile(f"{path}: {name} must be {leaf.dtype}{list(leaf.shape)}; the file has {came}.")
        return tensor

    return jax.tree_util.tree_map_with_path(place, template)


def _tensor_name(where: Any) -> str:
    return f"model{jax.tree_util.keystr(where)}"
