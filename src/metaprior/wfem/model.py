"""A trained prior: particles of theta, their predictions of new tasks given contexts, and what files hold."""

from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from msgspec import UNSET

from metaprior.estimators.files import Header
from metaprior.estimators.files import Model as StoredModel
from metaprior.files import LARGEST, Arrays, check_weights, describe, package_versions, require
from metaprior.likelihoods.base import Prediction
from metaprior.linalg import log_sum_exp
from metaprior.memory import blocks
from metaprior.predict.ensemble import Ensemble
from metaprior.prior.files import read_scaling
from metaprior.search.report import TransferReport
from metaprior.tasks.scaling import Scaling
from metaprior.wfem.checkpoint import check_not_forked
from metaprior.wfem.gp import GPPrior, Posterior, condition_particles, predict_particles
from metaprior.wfem.inference import MAP, Method
from metaprior.wfem.likelihoods import Gaussian, GaussianNoise, in_predictions, parameters
from metaprior.wfem.linalg import float32_resolves
from metaprior.wfem.networks import merge
from metaprior.wfem.objective import HyperPrior
from metaprior.wfem.runs import draw_prior, scaling_template
from metaprior.wfem.settings import ENCODERS, KERNELS, MEANS, METHODS, Settings, Training, name_of

CONVOLUTION_WIDTH = 8  # numbers that an encoder computes per input
PARTS = *MEANS.values(), *KERNELS.values(), *ENCODERS.values(), *METHODS.values(), Gaussian, HyperPrior, Training
ATTRIBUTES, TRACES = ("temperature_", "dtype_", "best_step_"), ("loss_trace_", "validation_trace_")
MAX_PARTICLES = 100_000


class Model(NamedTuple):
    """A trained prior: particles of theta, the rest of the prior, and the scaling of its data.

    Methods are those of `Member`. Every particle is a component, and all have equal weights.
    """

    particles: PyTree
    rest: GPPrior
    scaling: Scaling

    @property
    def input_dim(self) -> int:
        """Number of columns of scaled inputs."""
        return self.scaling.width

    @property
    def n_components(self) -> int:
        """Number of particles."""
        return len(jax.tree.leaves(self.particles)[0])

    @property
    def likelihood(self) -> Any:
        """What is observed of the latent function."""
        return in_predictions(self.rest.likelihood)

    @property
    def component_parameters(self) -> np.ndarray:
        """Log standard deviations of Gaussian noise in the units of y, (particles, 1); of others none."""
        observed = merge(self.particles, self.rest).likelihood
        return parameters(observed, (self.n_components,)) + np.log(float(self.scaling.y_std))

    @property
    def point_width(self) -> int:
        """Numbers computed per input point."""
        return self.input_dim * (CONVOLUTION_WIDTH if self.rest.encoder is not None else 1)

    @property
    def accelerated(self) -> bool:
        """Whether JAX runs on an accelerator."""
        return jax.default_backend() != "cpu"

    def condition(self, x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Posterior:
        """Return the posterior of every particle for every task; leaves are (particles, tasks, ...)."""
        check_not_forked()
        with jax.enable_x64(True):
            return condition_particles(self.particles, self.rest, x, y, mask)

    def condition_labels(
        self, x: np.ndarray, y: np.ndarray, mask: np.ndarray, n_classes: np.ndarray, most: int = 0
    ) -> Posterior:
        """Return the posterior given labels 0 and 1: gradient training is for two classes."""
        return self.condition(x, y, mask)

    def marginals(self, posterior: Posterior, x: np.ndarray) -> Prediction:
        """Predict x (tasks, queries, input_dim), each query on its own."""
        check_not_forked()
        with jax.enable_x64(True):
            mean, variance = (np.asarray(each) for each in predict_particles(self.particles, self.rest, posterior, x))
        mean, variance = self.scaling.undo_mean(mean), self.scaling.undo_variance(variance)
        return Prediction(mean, variance, self.component_parameters)

    def weighted_covariance(self, posterior: Posterior, x: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return the covariances of all particles at queries x (1, n, d), each times its share, added up: (n, n)."""
        check_not_forked()
        total, shares = np.zeros(2 * x.shape[1:2]), self.scaling.undo_variance(shares)
        with jax.enable_x64(True):
            for k in np.flatnonzero(shares).tolist():  # all particles at once would take as many times the memory
                particle, own = jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], (self.particles, posterior))
                found = np.asarray(predict_particles(particle, self.rest, own, x, joint=True)[1])
                for rows in blocks(len(total)):
                    total[rows] += shares[k] * found[0, 0, rows]
                del found
        return total

    def expected_bytes(self, size: int) -> float:
        """Return about how much memory it takes to condition on a context of such a size."""
        return 8.0 * size**2 * 2 * self.n_components

    def class_log_probabilities(self, posterior: Posterior, x: np.ndarray) -> np.ndarray:
        """Return the log probabilities of the two labels of x (tasks, queries, input_dim), (2, tasks, queries)."""
        mean, variance, *_ = self.marginals(posterior, x)
        of_each = [self.likelihood.log_density(np.asarray(y), mean, variance, np.zeros(0)) for y in (0.0, 1.0)]
        return log_sum_exp(np.stack(of_each), axis=1) - np.log(self.n_components)

    def take(self, posteriors: list[Posterior], places: np.ndarray) -> Posterior:
        """Join posteriors along their tasks and return those of the tasks at `places`, as NumPy arrays."""
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1)[:, places], *posteriors)

    def float32_problem(self, largest_context: int, standardized: bool) -> str | None:
        """Return what float32 is too coarse for, by the rule that chooses the precision of training.

        `wfem.linalg` floors the noise variance at 4 eps n; the noise should be well above. Labels have no noise: they
        need small contexts and inputs of moderate size.
        """
        likelihood = merge(self.particles, self.rest).likelihood
        if isinstance(likelihood, GaussianNoise):
            noise_std = float(np.min(np.exp(np.asarray(likelihood.log_noise_std, np.float64))))
            why = f"noise of {noise_std:.1g} of the spread of y and contexts of {largest_context} samples"
            return None if float32_resolves(noise_std, largest_context) else why
        possible = largest_context <= 100 and standardized
        return None if possible else "contexts of over 100 samples, or unscaled inputs"

    def __reduce__(self) -> Any:
        # A JAX array in double precision would be read back in single precision.
        return Model, tuple(jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, self))


def joined_particles(model: Ensemble) -> PyTree:
    """Return the particles of all members, one member after another."""
    members: tuple[Any, ...] = model.members
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(member.particles for member in members))


def as_arviz(model: Ensemble, report: TransferReport, method: Method) -> Any:
    """Return the particles as `InferenceData`, or as a `DataTree` of ArviZ 1.0 and later."""
    try:
        arviz = import_module("arviz")
    except ImportError:
        raise ImportError("to_arviz needs ArviZ, which is not installed: run pip install 'metaprior[arviz]'.") from None
    if type(method) is MAP:
        raise ValueError(
            "inference='map' finds modes of theta, which are not draws from a posterior; see particles_ for them. Fit "
            "with inference='laplace' or 'svgd' for draws."
        )
    members: tuple[Any, ...] = model.members
    particles = jax.tree.map(lambda *leaves: np.stack(leaves), *(member.particles for member in members))
    leaves = jax.tree_util.tree_leaves_with_path(particles)
    posterior = {jax.tree_util.keystr(where).lstrip("."): np.asarray(leaf) for where, leaf in leaves}
    stats = {"particle_weight": model.component_weights.reshape(len(members), -1)}
    attributes = {
        "inference_library": "metaprior",
        "inference_library_version": package_versions()["metaprior"],
        "inference": type(method).__name__.lower(),
        "alpha": report.alpha[report.weight > 0].tolist(),
    }
    if int(arviz.__version__.partition(".")[0]) < 1:
        return arviz.from_dict(posterior=posterior, sample_stats=stats, attrs=attributes)
    return arviz.from_dict({"posterior": posterior, "sample_stats": stats}, attrs={"/": attributes})


def model_parts(model: Ensemble) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return what is stored of a model: nothing as JSON, and arrays."""
    leaves = jax.tree_util.tree_flatten_with_path(model._replace(spread=1.0))[0]
    return [], {_array_name(where): np.asarray(leaf) for where, leaf in leaves if hasattr(leaf, "shape")}


def read_model(settings: Settings, stored: StoredModel, header: Header, arrays: Arrays) -> Ensemble:
    """Return the model of an estimator from a file; its structure follows from the settings of the estimator."""
    check_not_forked()
    require(not stored.members, "members must be an empty list")
    n_particles = _check_training(header, arrays)
    fitted, input_dim, n_members = header.fitted, header.input_dim, stored.n_members
    check_weights("model.weights", arrays.get("model.weights"), n_members)
    kinds = settings.kinds
    for i in range(n_members):  # before anything of this size is made
        read_scaling(arrays, f"model.members[{i}].scaling.", input_dim, header.training.scaling, kinds)
    width = input_dim if kinds is None else sum(kinds.widths)
    settings = replace(settings, method=MAP(n_particles))
    named = f"it names a kernel {fitted.family_!r} that its parameters do not have"
    require(fitted.family_ == name_of(settings.kernel), named)
    with jax.enable_x64(fitted.dtype_ == "float64"):
        dtype = jnp.zeros(()).dtype
        with np.errstate(over="ignore"):  # numbers of the file that float32 does not have: only shapes are wanted here
            particles, rest, _ = eqx.filter_eval_shape(draw_prior, jax.random.key(0), width, settings, 1.0, dtype)
        member = Model(particles, rest, scaling_template(input_dim, settings))
        return _fill(Ensemble((member,) * n_members, np.zeros(n_members)), arrays)


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
