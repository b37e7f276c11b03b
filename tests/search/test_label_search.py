"""The search of the default for labels: how held-out tasks are split."""

import numpy as np
import pytest

from metaprior.search.label_search import LabelSearch
from metaprior.tasks.types import Task


def tasks_with(*labels):
    rng = np.random.default_rng(0)
    return [Task(rng.normal(size=(len(y), 2)), np.array(y, float)) for y in labels]


BALANCED = [[0, 1] * 4] * 6
UNBALANCED = [*BALANCED, [0] * 8]


@pytest.mark.parametrize(
    ("labels", "n_shared", "by_class"), [(BALANCED, 2, True), (UNBALANCED, 2, False), (UNBALANCED, None, True)]
)
def test_contexts_have_half_of_every_class_only_where_those_of_new_tasks_will(labels, n_shared, by_class):
    search = LabelSearch([[], tasks_with(*labels)], 1, n_shared, seed=0)
    shares = {float(split.y_context.mean()) for splits in search.folds.splits[:6] for split in splits}
    assert (shares == {0.5}) == by_class
