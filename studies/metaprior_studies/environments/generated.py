"""Generated images in classes, used if real few-shot data are missing, with the same kind of shift.

An image is the pattern of its class, plus nuisances that all classes of a data set share (like lighting and
background), plus noise. The nuisances dominate, so that it helps to have seen other classes. Source and target have
different patterns and share three quarters of their nuisances.
"""

import numpy as np

from metaprior_studies.environments.images import ClassData, from_arrays

SIDE = 8
N_CLASSES = (24, 8, 12)  # train, validation, test
PER_CLASS = 40
N_NUISANCES = 24
PATTERN, NUISANCE, NOISE = 0.35, 0.5, 0.15


def generated_images(seed: int = 0) -> tuple[ClassData, ClassData]:
    """Return a source and a target data set of 8x8 color images."""
    rng = np.random.default_rng(seed)
    nuisances = _smooth(N_NUISANCES + N_NUISANCES // 4, rng)
    source = _data_set("generated source images", nuisances[:N_NUISANCES], rng)
    return source, _data_set("generated target images", nuisances[-N_NUISANCES:], rng)


def _data_set(name: str, nuisances: np.ndarray, rng: np.random.Generator) -> ClassData:
    n_classes = sum(N_CLASSES)
    y = np.repeat(np.arange(n_classes), PER_CLASS)
    strengths = NUISANCE * rng.standard_normal((len(y), len(nuisances)))
    x = PATTERN * _smooth(n_classes, rng)[y] + np.tensordot(strengths, nuisances, axes=1)
    x += NOISE * rng.standard_normal(x.shape)
    return from_arrays(name, x.astype(np.float32), y, np.repeat(np.repeat([0, 1, 2], N_CLASSES), PER_CLASS))


def _smooth(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return random smooth images (n, side, side, 3) of unit variance: a few waves of low frequency."""
    axis = np.arange(SIDE) / SIDE
    waves = np.stack([np.cos(np.pi * k * (axis + 0.5 / SIDE)) for k in range(4)])  # (4, side)
    weights = rng.standard_normal((n, 4, 4, 3)) / (1.0 + np.arange(4)[:, None, None] + np.arange(4)[:, None])
    images = np.einsum("nklc,ki,lj->nijc", weights, waves, waves)
    return images / images.std(axis=(1, 2, 3), keepdims=True)
