"""Averages over the members of an ensemble."""

import numpy as np
import pytest

from metaprior.predict.batches import average_log
from metaprior.predict.ensemble import Ensemble, predicts_labels
from metaprior.tasks.scaling import Scaling
from metaprior.wfem.model import Model

SCALING = Scaling(np.zeros(2), np.ones(2), 10.0, 3.0)


def test_probabilities_are_averaged_by_the_weights_of_the_members():
    rng = np.random.default_rng(0)
    probabilities, weights = rng.random((3, 2, 4)), np.array([0.2, 0.5, 0.3])
    averaged = average_log(np.log(probabilities), weights)
    np.testing.assert_allclose(averaged, np.log(np.einsum("m,mab->ab", weights, probabilities)), rtol=1e-12)
    assert averaged.shape == (2, 4)
    one = np.log(probabilities[:1])
    np.testing.assert_array_equal(average_log(one, np.ones(1)), one[0])  # bit for bit


def test_particles_share_the_weight_of_their_member():
    members = tuple(Model({"a": np.zeros((4, 3))}, None, SCALING) for _ in range(2))  # type: ignore[arg-type]
    ensemble = Ensemble(members, np.array([0.25, 0.75]))
    assert (members[0].n_components, ensemble.input_dim) == (4, 2)
    np.testing.assert_allclose(ensemble.component_weights, [0.0625] * 4 + [0.1875] * 4)


def test_what_is_no_fitted_estimator_is_refused():
    with pytest.raises(ValueError, match="meta must be a fitted MetaGPRegressor or MetaGPClassifier; got dict"):
        predicts_labels({})
