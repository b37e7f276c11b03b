"""What the page says about transfer, in two sentences without symbols."""

import numpy as np
import pytest

from metaprior.search.report import TransferReport


def report(gain=None, error=0.01, names=("north", "south"), alpha=0.25, **changed):
    """A report of target-only and one weight of the sources, with a given gain."""
    n = len(names) - 1
    weights = np.array([[0.0] * n + [1.0], [alpha / max(n, 1)] * n + [1.0 - alpha]])
    given = {
        "n_target_tasks": 8,
        "n_source_tasks": 40,
        "score": np.zeros(2),
        "standard_error": np.ones(2),
        "source_gain": None if gain is None else (gain, error),
        **changed,
    }
    return TransferReport(
        names,
        names[-1],
        environment_weights=weights,
        temperature=np.ones(2),
        prior_std=np.ones(2),
        weight=np.array([0.0, 1.0]),
        **given,
    )


@pytest.mark.parametrize(
    ("gain", "error", "expected"),
    [
        (0.2, 0.01, "helps"),
        (0.02, 0.01, "probably helps"),
        (0.005, 0.01, "unclear"),
        (-0.005, 0.01, "unclear"),
        (0.0, 0.0, "unclear"),
        (-0.02, 0.01, "probably does not help"),
        (-0.2, 0.01, "does not help"),
        (0.1, 0.0, "helps"),
        (-0.1, 0.0, "does not help"),
    ],
)
def test_the_judgment_and_its_words(gain, error, expected):
    found = report(gain, error)
    assert found.judgment == expected
    first, second = found.plain_words.split(". ", 1)
    said = {
        "helps": "The tasks of north help to predict new tasks of south:",
        "probably helps": "The tasks of north probably help to predict new tasks of south:",
        "unclear": "It is unclear whether the tasks of north help to predict new tasks of south:",
        "probably does not help": "The tasks of north probably do not help to predict new tasks of south:",
        "does not help": "The tasks of north do not help to predict new tasks of south:",
    }[expected]
    assert first.startswith(said)
    assert second == "Weights in predictions: north 25%, south 75%."
    assert (expected == "unclear") == found.verdict.startswith("It is unclear")


def test_the_gain_is_told_as_a_percentage():
    assert "22% more probable with them than without" in report(0.2).plain_words
    assert "18% less probable with them than without" in report(-0.2).plain_words
    assert "left-out readings of south" in report(0.2).plain_words
    assert "left-out labels of south" in report(0.2, outputs="labels").plain_words


def test_the_level_depends_on_the_number_of_tasks():
    assert report(0.035, n_target_tasks=30).judgment == "helps"
    assert report(0.035, n_target_tasks=3).judgment == "probably helps"


def test_several_sources():
    words = report(0.2, names=("east", "north", "south")).plain_words
    assert "The tasks of the other environments help" in words
    assert words.endswith("Weights in predictions: east 12%, north 12%, south 75%.")


@pytest.mark.parametrize("changed", [{"names": ("south",), "alpha": 0.0}, {"n_source_tasks": 0}])
def test_one_environment(changed):
    words = report(**changed).plain_words
    assert words.startswith("All tasks come from one environment, so there is nothing to transfer.")
    assert "these 8 tasks" in words


def test_nothing_compared():
    found = report(score=None, standard_error=None)
    assert found.judgment is None
    assert found.plain_words.startswith(
        "It was not measured whether the tasks of north help to predict those of south."
    )
    assert found.plain_words.endswith("south 75%.")


def test_no_symbols_in_any_case():
    cases = [report(gain) for gain in (None, -0.5, -0.02, 0.0, 0.02, 0.5)]
    for words in [*(each.plain_words for each in cases), report(names=("a",), alpha=0.0).plain_words]:
        assert not set(words) & set("±=α_")
        assert "alpha" not in words
        assert words.count(". ") == 1
        assert words.endswith(".")
