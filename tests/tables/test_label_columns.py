"""Predicted labels in a table: a column for every class, whoever has it."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from sklearn.base import BaseEstimator

from metaprior import predict_frame
from metaprior.tables import label_columns
from metaprior.tables.columns import TableWarning
from metaprior.tasks.columns import Features
from metaprior.tasks.labels import encode_contexts

NAMES = {"task": "site", "x": "size", "y": "bird"}


class StandIn(BaseEstimator):
    """A fitted classifier with known probabilities, that of class c proportional to exp(c x)."""

    likelihood_, transfer_report = "bernoulli", None

    def __init__(self, classes=None):
        self.classes = classes
        self.classes_, self.features_ = classes, Features(1)
        self.model_ = SimpleNamespace(input_dim=1)
        self.n_features_in_, self.training_, self.parameters_ = 1, {}, {"context": "random"}

    def fit(self):
        return self

    def adapt_many(self, contexts):
        classes, _ = encode_contexts([y for _, y in contexts], "contexts", self.classes_)
        pairs = lambda inputs: zip(classes, inputs, strict=True)  # noqa: E731
        predict = lambda inputs: [softmax(x * np.arange(len(names)), axis=1) for names, x in pairs(inputs)]  # noqa: E731
        return SimpleNamespace(classes_=classes, predict_proba=predict)


def tables(birds):
    """A context of the given labels for each site; queries of the sites in turn, three of each."""
    rows = [(site, label) for site, labels in birds.items() for label in labels]
    context = pd.DataFrame(rows, columns=["site", "bird"]).assign(size=1.0)
    query = pd.DataFrame({"site": list(birds) * 3})
    return context, query.assign(size=np.linspace(-1.0, 1.0, len(query)))


def test_a_column_for_every_class_that_tasks_share():
    shared = np.array(["auk", "jay", "owl"])
    context, query = tables({"a": ["owl", "auk"], "b": ["jay"]})
    found = predict_frame(StandIn(shared), context, query, **NAMES)
    columns = ["probability_auk", "probability_jay", "probability_owl"]
    assert list(found.columns) == ["site", "size", "label", *columns, "extrapolates"]
    expected = softmax(query["size"].to_numpy()[:, None] * np.arange(3), axis=1)
    np.testing.assert_allclose(found[columns], expected)
    assert found["label"].tolist() == shared[expected.argmax(axis=1)].tolist()


def test_classes_of_their_own_are_joined_and_empty_where_a_task_has_them_not():
    context, query = tables({"a": ["auk", "jay", "owl"], "b": ["jay", "kea"], "c": ["tit"]})
    found = predict_frame(StandIn(), context, query, **NAMES)
    names = ["auk", "jay", "owl", "kea", "tit"]  # as tasks come; the second class of the last is not known
    assert list(found.columns[2:]) == [
        "label",
        "probability",
        *(f"probability_{name}" for name in names),
        "extrapolates",
    ]
    for site, own in {"a": ["auk", "jay", "owl"], "b": ["jay", "kea"], "c": ["tit"]}.items():
        of_site = found[found["site"] == site]
        size = of_site["size"].to_numpy()[:, None]
        expected = softmax(size * np.arange(max(len(own), 2)), axis=1)
        for j, name in enumerate(own):
            np.testing.assert_allclose(of_site[f"probability_{name}"], expected[:, j])
        others = [f"probability_{name}" for name in names if name not in own]
        assert of_site[others].isna().all(axis=None)
        np.testing.assert_allclose(of_site["probability"], expected.max(axis=1))


def test_a_task_with_other_labels_than_those_shared_is_refused_by_its_place():
    context, query = tables({"a": ["auk", "jay"], "b": ["Auk", "Jay"]})
    with pytest.raises(ValueError, match=r"context: task 'b' \(from row 3\), .* Is 'Auk' the same as 'auk'\?"):
        predict_frame(StandIn(np.array(["auk", "jay"])), context, query, **NAMES)


def test_more_classes_than_columns_are_told(monkeypatch):
    monkeypatch.setattr(label_columns, "MAX_OWN", 3)
    context, query = tables({"a": ["auk", "jay"], "b": ["kea", "tit"]})
    with pytest.warns(TableWarning, match="The tasks have 4 classes of their own, too many"):
        found = predict_frame(StandIn(), context, query, **NAMES)
    assert list(found.columns[2:]) == ["label", "probability", "extrapolates"]


@pytest.mark.parametrize("meta", [StandIn(), StandIn(np.array(["auk", "jay"]))], ids=["own", "shared"])
def test_a_class_with_the_name_of_an_input_column_is_refused(meta):
    context, query = tables({"a": ["auk", "jay"]})
    both = [table.rename(columns={"size": "probability_jay"}) for table in (context, query)]
    with pytest.raises(ValueError, match=r"column 'probability_jay' has the name of a column of the result \(label, "):
        predict_frame(meta, *both, task="site", x="probability_jay", y="bird")
