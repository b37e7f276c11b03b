"""The golden file: what every case gave when it was last recorded, and on which machine.

`make golden` records it again.
"""

import platform
import warnings
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from golden_cases import CASES, OTHER_TABLES, R_TABLES, table

PATH = Path(__file__).with_name("golden.json")
SAME_MACHINE = 1e-8  # relative to the size of a number, or of the largest of its array
# Other processors and versions add in another order, and an optimizer that stops one step sooner is not wrong: on one
# with NumPy 2.5 and JAX 0.11 all but one case agreed to 1e-3, and that one, of averaged families, to 0.02.
OTHER_MACHINE = 0.05


def all_cases():
    """Return every case by name, those of tables too."""
    return CASES | {f"table {name}": partial(table, name) for name in (*R_TABLES, *OTHER_TABLES)}


def machine():
    """Tell what the last digits of a number depend on."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.split(":")[1].strip() for line in flags.splitlines() if line.startswith("model name")), "")
    packages = {name: version(name) for name in ("numpy", "scipy", "scikit-learn", "jaxlib")}
    return {"processor": model or platform.processor(), "system": platform.system(), **packages}


def compute(case):
    """Return the arrays of a case. Tests of other things see to warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return {name: np.asarray(value, float) for name, value in case().items()}


def differences(expected, found, tolerance):
    """Return one line for every array of a case that is not as expected."""
    lines = [f"{name}: only {'expected' if name in expected else 'found'}" for name in expected.keys() ^ found.keys()]
    for name in expected.keys() & found.keys():
        want, got = np.array(expected[name], float), found[name]
        size = float(np.max(np.abs(want[np.isfinite(want)]), initial=0.0))
        if want.shape != got.shape:
            lines.append(f"{name}: shape {want.shape} expected, {got.shape} found")
        elif not np.allclose(got, want, rtol=tolerance, atol=tolerance * size, equal_nan=True):
            lines.append(f"{name}: differs by {np.nanmax(np.abs(got - want)):.3g}, of numbers up to {size:.3g}")
    return sorted(lines)
