"""What files hold of priors that were trained by gradients."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from metaprior.estimators.prior_header import TRAINED
from metaprior.predict.ensemble import Ensemble
from metaprior.schema import MAX_NUMBER, Mismatch, check_weights, describe
from metaprior.tasks.scaling_arrays import read_scaling
from metaprior.wfem.choices import ENCODERS, KERNELS, MEANS, METHODS, name_of
from metaprior.wfem.fit import make_settings
from metaprior.wfem.forked import check_not_forked
from metaprior.wfem.hyperprior import HyperPrior
from metaprior.wfem.inference import MAP
from metaprior.wfem.likelihoods import Gaussian
from metaprior.wfem.runs import draw_prior, scaling_template
from metaprior.wfem.trained import Model
from metaprior.wfem.training import Training

# Attributes and arrays of the estimator, beyond what all have, and the classes that describe parts of a prior.
ATTRIBUTES, ARRAYS = tuple(TRAINED), ("loss_trace_", "validation_trace_")
PARTS = *MEANS.values(), *KERNELS.values(), *ENCODERS.values(), *METHODS.values(), Gaussian, HyperPrior, Training
DESCRIPTIONS = {kind.__name__: kind for kind in PARTS}
MAX_PARTICLES = 100_000


def check_arrays(header: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Raise Mismatch unless what describes the training is there, and of the right kind."""
    for name in ATTRIBUTES:
        if name not in header["fitted"]:
            raise Mismatch(f"fitted lacks {name}")
    if not 0 < header["training"].get("particles", 0) <= MAX_PARTICLES:
        raise Mismatch(f"training.particles must be a number of particles, at most {MAX_PARTICLES:,}")
    classes = header["fitted"].get("classes_")
    if classes is not None and len(classes) != 2:
        raise Mismatch("fitted.classes_ must be two classes")
    for name in ARRAYS:
        trace = tensors.get(name)
        if trace is None or trace.ndim != 1 or trace.dtype.kind != "f":
            raise Mismatch(f"{name} must be a list of floats; the file has {describe(trace)}")


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
    settings = replace(make_settings(meta), method=MAP(header["training"]["particles"]), kinds=kinds)
    if header["fitted"]["family_"] != name_of(settings.kernel):
        raise Mismatch(f"it names a kernel {header['fitted']['family_']!r} that its parameters do not have")
    with jax.enable_x64(fitted["dtype_"] == "float64"):
        dtype = jnp.zeros(()).dtype
        particles, rest, _ = eqx.filter_eval_shape(draw_prior, jax.random.key(0), width, settings, 1.0, dtype)
        member = Model(particles, rest, scaling_template(input_dim, settings))
        return _fill(Ensemble((member,) * n_members, np.zeros(n_members)), tensors)


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


def _largest(name: str, dtype: np.dtype) -> float:
    """Return the largest number whose square, or the square of whose exponential, the precision can hold."""
    if ".scaling." in name:
        return MAX_NUMBER
    root = float(np.sqrt(np.finfo(dtype).max)) / 2.0
    return float(np.log(root)) if ".log_" in name else root


def _tensor_name(where: Any) -> str:
    return f"model{jax.tree_util.keystr(where)}"
