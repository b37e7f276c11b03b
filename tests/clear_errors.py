"""What a mistake of a user ends in."""

import pytest


def assert_clear_error(call, *parts, error=ValueError):
    """`call` raises one short error that holds every part."""
    with pytest.raises(error) as raised:
        call()
    text = str(raised.value)
    assert raised.value.__cause__ is None, "an error behind the error"
    assert raised.value.__context__ is None or raised.value.__suppress_context__, "an error before the error"
    assert len(text) < 500, text
    for part in parts:
        assert part in text, text
