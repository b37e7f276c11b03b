"""Make the example tables of the package: simulated heart rates after surgery.

    python studies/benchmarks/make_example.py src/metaprior/datasets/example

patients.csv has patients of two hospitals to learn a prior from, test.csv other patients of the second hospital to
evaluate it on, readings.csv the first few readings of three new patients there, and hours.csv the hours to predict.
"""

import csv
import math
import sys
from pathlib import Path

import numpy as np

# Beats per minute at rest, increase after surgery, and hours until the increase has fallen to 1/e, by hospital.
HOSPITALS = {"north": (76.0, 26.0, 8.0), "south": (80.0, 34.0, 11.0)}
NOISE = 2.5


def patient(hospital: str, rng: np.random.Generator) -> np.ndarray:
    """Return the hours and readings of a stay, in order."""
    rest, faster, decay = HOSPITALS[hospital]
    hours = np.sort(rng.choice(np.arange(0, 48.5, 0.5), rng.integers(8, 15), replace=False))
    rest, faster = rest + rng.normal(0, 6), faster + rng.normal(0, 7)
    decay, admission = decay * math.exp(rng.normal(0, 0.2)), rng.normal(10, 1.5)
    curve = rest + faster * np.exp(-hours / decay) - 4 * np.cos(2 * np.pi * (hours + admission - 4) / 24)
    return np.stack([hours, np.round(curve + rng.normal(0, NOISE, len(hours)))], axis=1)


def tables() -> dict[str, list[tuple]]:
    """Return header and rows of every file."""
    rng = np.random.default_rng(2026)
    rows = lambda name, hospital, data: [(name, hospital, f"{hour:g}", f"{rate:g}") for hour, rate in data]  # noqa: E731
    header = ("patient", "hospital", "hours", "heart_rate")
    stays = {f"N{i:02d}": ("north", patient("north", rng)) for i in range(1, 41)}
    stays |= {f"S{i:02d}": ("south", patient("south", rng)) for i in range(1, 9)}
    tests = {f"T{i:02d}": ("south", patient("south", rng)) for i in range(1, 31)}
    new = {f"new{i}": ("south", patient("south", rng)[:5]) for i in range(1, 4)}
    hours = [(name, f"{hour:g}") for name in new for hour in range(0, 49, 2)]
    return {
        "patients.csv": [header, *(row for name, stay in stays.items() for row in rows(name, *stay))],
        "test.csv": [header, *(row for name, stay in tests.items() for row in rows(name, *stay))],
        "readings.csv": [header, *(row for name, stay in new.items() for row in rows(name, *stay))],
        "hours.csv": [("patient", "hours"), *hours],
    }


def write(folder: Path) -> None:
    for name, rows in tables().items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
