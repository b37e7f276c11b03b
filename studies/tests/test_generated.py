"""Generated images: classes in three splits, and nuisances that hide what tells them apart."""

import numpy as np

from metaprior_studies.environments.generated import N_CLASSES, N_NUISANCES, PER_CLASS, SIDE, generated_images


def test_layout_and_seed():
    source, target = generated_images()
    for data in (source, target):
        assert data.shape == (SIDE, SIDE, 3)
        assert data.n_samples == sum(N_CLASSES) * PER_CLASS
        assert tuple(len(classes) for classes in data.splits.values()) == N_CLASSES
        assert all(len(members) == PER_CLASS for classes in data.splits.values() for members in classes.values())
    again, _ = generated_images()
    other, _ = generated_images(seed=1)
    first = source.images([0, 100])
    np.testing.assert_array_equal(first, again.images([0, 100]))
    assert not np.array_equal(first, other.images([0, 100]))
    assert not np.array_equal(first, target.images([0, 100]))


def test_the_spread_within_classes_is_that_of_the_nuisances_shared_by_three_quarters():
    """Each data set spreads in N_NUISANCES directions, of which the other shares three quarters (noise aside)."""
    spans = []
    for data in generated_images():
        classes = [data.images(members, flatten=True) for split in data.splits.values() for members in split.values()]
        rows = np.concatenate([x - x.mean(axis=0) for x in classes])
        _, sizes, directions = np.linalg.svd(rows, full_matrices=False)
        assert sizes[N_NUISANCES - 1] > 1.5 * sizes[N_NUISANCES]
        spans.append(directions[:N_NUISANCES])
    overlap = np.linalg.svd(spans[0] @ spans[1].T, compute_uv=False)
    shared = 3 * N_NUISANCES // 4
    assert overlap[shared - 1] > 0.9 > overlap[shared + 1]
