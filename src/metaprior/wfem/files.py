"""What files hold of priors that were trained by gradients."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from msgspec import UNSET

from metaprior.estimators.files import FileFormat, Header
from metaprior.estimators.files import Model as StoredModel
from metaprior.files import LARGEST, Arrays, check_weights, describe, require
from metaprior.predict.ensemble import Ensemble
from metaprior.prior.files import read_scaling
from metaprior.wfem.checkpoint import check_not_forked
from metaprior.wfem.choices import ENCODERS, KERNELS, MEANS, METHODS, name_of
from metaprior.wfem.fit import make_settings
from metaprior.wfem.hyperprior import HyperPrior
from metaprior.wfem.inference import MAP
from metaprior.wfem.likelihoods import Gaussian
from metaprior.wfem.runs import Training, draw_prior, scaling_template
from metaprior.wfem.trained import Model

PARTS = *MEANS.values(), *KERNELS.values(), *ENCODERS.values(), *METHODS.values(), Gaussian, HyperPrior, Training
ATTRIBUTES, TRACES = ("temperature_", "dtype_", "best_step_"), ("loss_trace_", "validation_trace_")
MAX_PARTICLES = 100_000


def model_parts(model: Ensemble) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return what is stored of a model: nothing as JSON, and arrays."""
    leaves = jax.tree_util.tree_flatten_with_path(model._replace(spread=1.0))[0]
    return [], {_array_name(where): np.asarray(leaf) for where, leaf in leaves if hasattr(leaf, "shape")}


def read_model(meta: Any, stored: StoredModel, header: Header, arrays: Arrays) -> Ensemble:
    """Return the model of an estimator from a file; its structure follows from the parameters of the estimator."""
    check_not_forked()
    require(not stored.members, "members must be an empty list")
    n_particles = _check_training(header, arrays)
    fitted, input_dim, n_members = header.fitted, header.input_dim, stored.n_members
    check_weights("model.weights", arrays.get("model.weights"), n_members)
    kinds = meta.features_.kinds
    for i in range(n_members):  # before anything of this size is made
        read_scaling(arrays, f"model.members[{i}].scaling.", input_dim, header.training.scaling, kinds)
    width = input_dim if kinds is None else sum(kinds.widths)
    settings = replace(make_settings(meta), method=MAP(n_particles), kinds=kinds)
    named = f"it names a kernel {fitted.family_!r} that its parameters do not have"
    require(fitted.family_ == name_of(settings.kernel), named)
    with jax.enable_x64(fitted.dtype_ == "float64"):
        dtype = jnp.zeros(()).dtype
        with np.errstate(over="ignore"):  # numbers of the file that float32 does not have: only shapes are wanted here
            particles, rest, _ = eqx.filter_eval_shape(draw_prior, jax.random.key(0), width, settings, 1.0, dtype)
        member = Model(particles, rest, scaling_template(input_dim, settings))
        return _fill(Ensemble((member,) * n_members, np.zeros(n_members)), arrays)


FORMAT = FileFormat(model_parts, read_model, TRACES, {kind.__name__: kind for kind in PARTS})


def _check_training(header: Header, arrays: Arrays) -> int:
    """Return the number of particles; raise unless what describes the training is there, and of the right kind."""
    for name in ATTRIBUTES:
        require(getattr(header.fitted, name) is not UNSET, f"fitted lacks {name}")
    classes, n_particles = header.fitted.classes_, header.training.particles
    require(not isinstance(classes, list) or len(classes) == 2, "fitted.classes_ must be two classes")
    for name in TRACES:
        trace = arrays.get(name)
        fits = trace is not None and trace.ndim == 1 and trace.dtype.kind == "f"
        require(fits, f"{name} must be a list of floats; the file has {describe(trace)}")
    if not isinstance(n_particles, int) or not 0 < n_particles <= MAX_PARTICLES:
        raise ValueError(f"training.particles must be a number of particles, at most {MAX_PARTICLES:,}")
    return n_particles


def _fill(template: Ensemble, arrays: Arrays) -> Ensemble:
    """Fill the template with the file's arrays; raise if a shape or precision differs, or a number cannot be."""

    def place(where: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        name = _array_name(where)
        tensor = arrays.get(name)
        if tensor is None or tensor.shape != leaf.shape or tensor.dtype != leaf.dtype:
            raise ValueError(f"{name} must be {leaf.dtype}{list(leaf.shape)}; the file has {describe(tensor)}")
        if tensor.dtype.kind == "f" and not (np.abs(tensor) <= _largest(name, tensor.dtype)).all():  # NaN is not
            raise ValueError(f"{name} must have finite numbers of at most {_largest(name, tensor.dtype):g}")
        return tensor

    return jax.tree_util.tree_map_with_path(place, template)


def _largest(name: str, dtype: np.dtype) -> float:
    """Return the largest number whose square, or the square of whose exponential, the precision can hold."""
    if ".scaling." in name:
        return LARGEST
    root = float(np.sqrt(np.finfo(dtype).max)) / 2.0
    return float(np.log(root)) if ".log_" in name else root


def _array_name(where: Any) -> str:
    return f"model{jax.tree_util.keystr(where)}"
