"""A covariate that does nothing gets no weight, though the common curve was found in the same readings."""

import numpy as np
import pytest

from metaprior import MetaGPRegressor


@pytest.mark.parametrize("seed", [0, 5, 100, 105])
def test_a_useless_covariate_has_no_majority(seed):
    rng, tasks = np.random.default_rng(seed), []
    for _ in range(8):
        z, x, center = rng.normal(), np.sort(rng.uniform(0, 1, 10)), 0.5 + 0.12 * rng.normal()
        y = np.tanh((x - center) * 8) * np.exp(0.2 * rng.normal()) + 0.05 * rng.normal(size=10)
        tasks.append((np.column_stack([x, np.full(10, z)]), y))
    meta = MetaGPRegressor(covariates=[1], random_state=0).fit(target_tasks=tasks)
    assert meta.covariate_weights_["none"] > 0.5
