"""Messages that keep the arguments they name, and checks of arguments."""

import inspect
import pickle
import sys
import warnings

import numpy as np
import pytest

from metaprior.checks import (
    Argument,
    Message,
    check_bool,
    check_choice,
    check_integer,
    check_positive,
    draw_seed,
    require_matplotlib,
    warn_caller,
)


def test_a_message_is_text_that_keeps_its_arguments():
    advice = Message("pass ", Argument("drop_missing", True), " or ", Argument("task", ["a", "b"]))
    message = Message("row {1} is empty: ", advice, "; see ", Argument("n_steps"), ".")
    assert message == "row {1} is empty: pass drop_missing=True or task=['a', 'b']; see n_steps."
    assert str(ValueError(message)) == message
    assert message.spell(lambda argument: f"<{argument.name}>") == (
        "row {1} is empty: pass <drop_missing> or <task>; see <n_steps>."
    )
    assert pickle.loads(pickle.dumps(message)).parts == message.parts
    with pytest.warns(UserWarning, match="see n_steps") as caught:
        warnings.warn(message, stacklevel=1)
    assert caught[0].message.args[0].parts == message.parts


@pytest.mark.parametrize(
    ("check", "bad", "expected"),
    [
        (lambda value: check_positive("noise_std", value), [0, -1.0, np.nan, True, "1"], "must be a positive number"),
        (lambda value: check_integer("n_steps", value, 2), [1, 2.0, True, "3"], "must be an integer of at least 2"),
        (lambda value: check_bool("progress", value), [1, "yes", None], "must be True or False"),
        (lambda value: check_choice("kernel", value, ("a", "b")), ["c", 1, None], "must be one of a, b"),
    ],
)
def test_checks_name_the_argument_and_what_came(check, bad, expected):
    for value in bad:
        with pytest.raises(ValueError, match=expected) as raised:
            check(value)
        message = raised.value.args[0]
        assert repr(value) in message
        assert isinstance(message.parts[0], Argument)
        assert message.startswith(f"{message.parts[0].name} must be")


@pytest.mark.parametrize("value", [1e300, 1e16, 1e-16, 1e-300])
def test_a_scale_whose_square_would_overflow_is_refused(value):
    with pytest.raises(ValueError, match=r"^prior_std must lie between 1e-15 and 1e\+15 or 'auto'; got"):
        check_positive("prior_std", value, " or 'auto'")
    assert check_positive("noise_std", value, limits=None) == value


def test_a_warning_points_at_the_line_that_called_the_package():
    """The tests' own import hook puts a frame around every function, so the functions here are made by hand."""
    package = {"__name__": "metaprior.somewhere", "warn_caller": inspect.unwrap(warn_caller)}
    exec("def inner():\n    warn_caller('look here')\ndef outer():\n    inner()", package)
    with pytest.warns(UserWarning, match="look here") as caught:
        package["outer"]()
    assert (caught[0].filename, caught[0].lineno) == (__file__, inspect.currentframe().f_lineno - 1)


def test_what_passes_comes_back():
    assert check_positive("noise_std", np.float32(0.5)) == 0.5
    assert check_integer("n_steps", np.int64(3), 3) == 3
    assert check_choice("kernel", "a", ("a", "b")) == "a"
    check_bool("progress", np.True_)


def test_matplotlib_is_optional(monkeypatch):
    require_matplotlib()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'metaprior\[plots\]'"):
        require_matplotlib()


@pytest.mark.parametrize("random_state", [-1, 2**32, "a", 1.5])
def test_a_seed_that_is_none_is_refused_by_name(random_state):
    with pytest.raises(ValueError, match="random_state must be None, an integer from 0"):
        draw_seed(random_state)


def test_seeds_follow_the_random_state():
    assert draw_seed(3) == draw_seed(3) != draw_seed(4)
