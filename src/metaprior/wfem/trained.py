"""Priors trained by gradients, in JAX: members of an ensemble that average over particles of theta.

Particles of a prior that was trained by gradients, as data of ArviZ.
"""

from importlib import import_module
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from metaprior.files import package_versions
from metaprior.likelihoods.base import Likelihood, Prediction
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.memory import blocks
from metaprior.predict.ensemble import Ensemble
from metaprior.tasks.scaling import Scaling
from metaprior.wfem import adaptation
from metaprior.wfem.checkpoint import check_not_forked
from metaprior.wfem.choices import resolve_inference
from metaprior.wfem.exact import Posterior
from metaprior.wfem.hyperprior import merge
from metaprior.wfem.inference import MAP
from metaprior.wfem.likelihoods import GaussianNoise, Observed
from metaprior.wfem.linalg import float32_resolves
from metaprior.wfem.prior import GPPrior

CONVOLUTION_WIDTH = 8  # numbers that an encoder computes per input

condition = eqx.filter_jit(adaptation.condition)
marginals = eqx.filter_jit(adaptation.marginals)
joint = eqx.filter_jit(adaptation.joint)


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
    def likelihood(self) -> Likelihood:
        """What is observed of the latent function: Gaussian noise, or what a user's own likelihood says."""
        observed = self.rest.likelihood
        return observed.own.response if isinstance(observed, Observed) else Gaussian()

    @property
    def component_parameters(self) -> np.ndarray:
        """Log standard deviations of Gaussian noise in the units of y, (particles, 1); of others none."""
        observed = merge(self.particles, self.rest).likelihood
        if not isinstance(observed, GaussianNoise):
            return np.zeros((self.n_components, 0))
        log_std = np.asarray(observed.log_noise_std, np.float64) + np.log(float(self.scaling.y_std))
        return np.broadcast_to(log_std.reshape(-1, 1), (self.n_components, 1))

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
            return condition(self.particles, self.rest, x, y, mask)

    def condition_labels(
        self, x: np.ndarray, y: np.ndarray, mask: np.ndarray, n_classes: np.ndarray, most: int = 0
    ) -> Posterior:
        """Return the posterior given labels 0 and 1: gradient training is for two classes."""
        return self.condition(x, y, mask)

    def marginals(self, posterior: Posterior, x: np.ndarray) -> Prediction:
        """Predict x (tasks, queries, input_dim), each query on its own."""
        check_not_forked()
        with jax.enable_x64(True):
            found = marginals(self.particles, self.rest, posterior, x)
            mean, variance = np.asarray(found.mean), np.asarray(found.variance)
        mean, variance = self.scaling.undo_mean(mean), self.scaling.undo_variance(variance)
        return Prediction(mean, variance, self.component_parameters)

    def weighted_covariance(self, posterior: Posterior, x: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return the covariances of all particles at queries x (1, n, d), each times its share, added up: (n, n)."""
        check_not_forked()
        total, shares = np.zeros(2 * x.shape[1:2]), self.scaling.undo_variance(shares)
        with jax.enable_x64(True):
            for k in np.flatnonzero(shares).tolist():  # all particles at once would take as many times the memory
                particle, own = jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], (self.particles, posterior))
                found = np.asarray(joint(particle, self.rest, own, x).variance)
                for rows in blocks(len(total)):
                    total[rows] += shares[k] * found[0, 0, rows]
                del found
        return total

    def expected_bytes(self, size: int) -> float:
        """Return about how much memory it takes to condition on a context of such a size."""
        return 8.0 * size**2 * 2 * self.n_components

    def class_log_probabilities(self, posterior: Posterior, x: np.ndarray) -> np.ndarray:
        """Return the log probabilities of the two labels of x (tasks, queries, input_dim), (2, tasks, queries)."""
        check_not_forked()
        with jax.enable_x64(True):
            prediction = marginals(self.particles, self.rest, posterior, x)
            return np.asarray(adaptation.label_log_probabilities(prediction), np.float64)

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
    particles: list[Any] = [getattr(member, "particles") for member in model.members]  # noqa: B009
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *particles)


def named_particles(model: Ensemble) -> dict[str, np.ndarray]:
    """Return the particles by names such as `kernel.log_length_scale`, (members, particles, ...)."""
    of_members = [jax.tree_util.tree_leaves_with_path(getattr(member, "particles")) for member in model.members]  # noqa: B009
    named = [{jax.tree_util.keystr(where).lstrip("."): leaf for where, leaf in leaves} for leaves in of_members]
    return {name: np.stack([np.asarray(each[name]) for each in named]) for name in named[0]}


def as_arviz(meta: Any) -> Any:
    """Return the particles as `InferenceData`, or as a `DataTree` of ArviZ 1.0 and later."""
    try:
        arviz = import_module("arviz")
    except ImportError:
        raise ImportError("to_arviz needs ArviZ, which is not installed: run pip install 'metaprior[arviz]'.") from None
    method = _method(meta)
    posterior = named_particles(meta.model_)
    shape = next(iter(posterior.values())).shape[:2]
    stats = {"particle_weight": np.reshape(meta.particle_weights_, shape)}
    attributes = {
        "inference_library": "metaprior",
        "inference_library_version": package_versions()["metaprior"],
        "inference": method,
        "alpha": meta.report_.alpha[meta.report_.weight > 0].tolist(),
    }
    if int(arviz.__version__.partition(".")[0]) < 1:
        return arviz.from_dict(posterior=posterior, sample_stats=stats, attrs=attributes)
    return arviz.from_dict({"posterior": posterior, "sample_stats": stats}, attrs={"/": attributes})


def _method(meta: Any) -> str:
    """Return the name of what made the particles; raise if they are modes and not draws."""
    method = resolve_inference(meta.parameters_["inference"])
    if type(method) is MAP:
        raise ValueError(
            "inference='map' finds modes of theta, which are not draws from a posterior; see particles_ for them. Fit "
            "with inference='laplace' or 'svgd' for draws."
        )
    return type(method).__name__.lower()
