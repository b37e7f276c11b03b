"""The search of the default for labels: how held-out tasks are split."""

import numpy as np
import pytest
from searches import search_for

from metaprior.search.labels import Labels
from metaprior.tasks.types import Task


def tasks_with(*labels):
    rng = np.random.default_rng(0)
    return [Task(rng.normal(size=(len(y), 2)), np.array(y, float)) for y in labels]


BALANCED = [[0, 1] * 4] * 6
UNBALANCED = [*BALANCED, [0] * 8]


@pytest.mark.parametrize(
    ("labels", "n_shared", "by_class"), [(BALANCED, 2, True), (UNBALANCED, 2, False), (UNBALANCED, None, True)]
)
def test_folds_are_stratified_only_where_new_tasks_will_be(labels, n_shared, by_class):
    search = search_for([[], tasks_with(*labels)], problem=Labels(n_shared))
    queries = [split.y_query for splits in search.folds.splits[:6] for split in splits]
    assert all(abs(2 * y.sum() - len(y)) <= 1 for y in queries) == by_class
