"""The contract of exported tasks: the file predicts, adapts and updates as the task does, for every kind of prior."""

import enum
import warnings

import numpy as np
import pandas as pd
import pytest

from hand_made_priors import export
from metaprior import MetaGPClassifier, MetaGPRegressor

WARDS = ["a", "b", "c"]
KINDS = ["numbers", "named", "categories", "covariates", "both"]


class Ward(enum.StrEnum):
    """Levels as an enumeration."""

    NORTH = "north"
    SOUTH = "south"


class Floor(enum.IntEnum):
    """Levels as an enumeration of numbers."""

    FIRST = 1
    SECOND = 2


def make_task(rng, kind, labeled, levels=WARDS):
    """Return X, whose effects depend on the kind of its columns, and y."""
    hours, codes, age = rng.uniform(0, 5, 9), rng.permutation(np.arange(9) % len(levels)), rng.uniform(40, 80)
    y = 3.0 * np.sin(hours) + rng.normal() + 0.1 * rng.normal(size=9)
    x = pd.DataFrame({"hours": hours, "dose": rng.uniform(size=9)})
    if kind in ("categories", "both"):
        x["ward"], y = pd.Series([levels[code] for code in codes], dtype=object), y + 4.0 * codes
    if kind in ("covariates", "both"):
        x["age"], y = age, y + age / 10
    y = y if not labeled else np.array(["no", "yes"])[(y > np.median(y)).astype(int)]
    return (x.to_numpy() if kind == "numbers" else x), y


def adapted(kind, labeled, folder, levels=WARDS):
    """Return a prior, a task of it, the module that the task is exported as, and all readings of the task."""
    rng = np.random.default_rng(0)
    named = {"covariates": ["age"] if kind in ("covariates", "both") else None}
    named |= {"categorical": ["ward"] if kind in ("categories", "both") else None}
    meta = (MetaGPClassifier if labeled else MetaGPRegressor)(0.0, **named, random_state=0)
    meta.fit(target_tasks=[make_task(rng, kind, labeled, levels) for _ in range(8)])
    x, y = make_task(rng, kind, labeled, levels)
    task = meta.adapt(x[:6], y[:6])
    return meta, task, export(task, folder), x, y


@pytest.mark.parametrize("labeled", [False, True], ids=["readings", "labels"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_task_is_conditioned_as_the_task(tmp_path, kind, labeled):
    _, task, module, x, y = adapted(kind, labeled, tmp_path)
    which = "predict_proba" if labeled else "predict"
    for found, expected in (
        (module.task, task),
        (module.task.update(x[6:], y[6:]), task.update(x[6:], y[6:])),
        (module.task.update(x[6:8], y[6:8]).update(x[8:], y[8:]), task.update(x[6:], y[6:])),
        (module.adapt(x[6:], y[6:]).update(x[:6], y[:6]), task.update(x[6:], y[6:])),
    ):
        for queries in [x, *([x.assign(age=None)] if "age" in x else [])]:  # known from the context
            expectation = getattr(expected, which)(queries)
            np.testing.assert_allclose(getattr(found, which)(queries), expectation, rtol=1e-9, atol=1e-10)


def test_unseen_and_missing_cells_of_a_context_stay_so(tmp_path):
    """Also if a level has the name that exported files give to levels that the fit did not have."""
    meta, _, _, x, y = adapted("both", False, tmp_path, ["a", "(unseen level)"])
    x = x.assign(age=None, ward=["new", "a", "(unseen level)"] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = meta.adapt(x[:6], y[:6])
        module = export(task, tmp_path, "unseen")
        for found, expected in ((module.task, task), (module.task.update(x[6:], y[6:]), task.update(x[6:], y[6:]))):
            np.testing.assert_allclose(found.predict(x), expected.predict(x), rtol=1e-9)


@pytest.mark.parametrize("levels", [list(Ward), list(Floor), [np.str_("a"), np.str_("b")], [np.int64(1), np.int64(2)]])
def test_levels_of_any_type_are_written_as_plain_values(tmp_path, levels):
    _, task, module, x, _ = adapted("categories", False, tmp_path, levels)
    assert {type(level) for level in module.LEVELS[2]} <= {str, int}
    np.testing.assert_allclose(module.predict(x), task.predict(x), rtol=1e-9)
    plain = x.assign(ward=[getattr(level, "value", level) for level in x["ward"]])
    np.testing.assert_allclose(module.predict(plain), task.predict(x), rtol=1e-9)


def test_labels_and_names_of_columns_are_written_as_plain_values(tmp_path):
    rng = np.random.default_rng(0)
    names = [np.str_("hours"), Ward.NORTH]
    tasks = [(pd.DataFrame(rng.normal(size=(8, 2)), columns=names), list(Ward) * 4) for _ in range(4)]
    task = MetaGPClassifier(0.0, random_state=0).fit(target_tasks=tasks).adapt(*tasks[0])
    module = export(task, tmp_path)
    assert module.CLASSES == ["north", "south"]
    assert [type(name) for name in module.COLUMNS] == [str, str]
    for x in (tasks[0][0], tasks[0][0].iloc[:, ::-1], tasks[0][0].set_axis(["hours", "north"], axis=1)):
        expected = task.predict_proba(tasks[0][0])
        np.testing.assert_allclose(module.predict_proba(x), expected, atol=1e-10)
        np.testing.assert_allclose(task.predict_proba(x), expected, atol=1e-10)


HIDDEN = ["numpy.py", "math.py", "statistics.py", "random.py", "class.py", "metaprior.py", "pandas.py"]


@pytest.mark.parametrize("name", HIDDEN)
def test_a_name_that_would_hide_a_module_is_refused(tmp_path, name):
    """`import numpy` beside a file of this name would import the file."""
    task = MetaGPRegressor(0.0, random_state=0).fit(target_tasks=[([[0.0], [1.0]], [0.0, 1.0])]).adapt([], [])
    with pytest.raises(ValueError, match=rf"cannot be named '{name}'.*such as 'patient\.py'"):
        task.export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_data_frames_are_read_by_the_file_as_by_the_task(tmp_path):
    _, task, module, x, _ = adapted("named", False, tmp_path)
    expected = task.predict(x)
    plain = x.set_axis(range(2), axis=1)  # no names
    for frame in (x, x[["dose", "hours"]], plain):
        np.testing.assert_allclose(task.predict(frame), expected, rtol=1e-9)
        np.testing.assert_allclose(module.predict(frame), expected, rtol=1e-9)
    for frame in (x.assign(more=1.0), x.set_axis([1, 0], axis=1), plain[[1, 0]], x.set_axis(["hours", "Dose"], axis=1)):
        for each in (task, module):
            with pytest.raises((TypeError, ValueError), match="names"):
                each.predict(frame)
    _, task, module, x, _ = adapted("numbers", False, tmp_path)
    x = pd.DataFrame(x)
    np.testing.assert_allclose(module.predict(x), task.predict(x), rtol=1e-9)
    for each in (task, module):
        with pytest.raises((TypeError, ValueError), match="names"):
            each.predict(x[[1, 0]])


def test_a_covariate_has_one_value_within_an_exported_task(tmp_path):
    _, task, module, x, y = adapted("covariates", False, tmp_path)
    other = x.assign(age=x["age"] + 1.0)
    for each in (task, module.task):
        for call in (lambda each=each: each.predict(other), lambda each=each: each.update(other, y)):
            with pytest.raises(ValueError, match="one value"):
                call()
    with pytest.raises(ValueError, match="one value"):
        module.adapt(pd.concat([x, other]), [*y, *y])
