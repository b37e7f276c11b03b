"""Particles of a prior that was trained by gradients, as data of ArviZ."""

from importlib import import_module
from typing import Any

import numpy as np

from metaprior.files import package_versions
from metaprior.wfem.choices import resolve_inference
from metaprior.wfem.inference import MAP
from metaprior.wfem.trained import named_particles


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
