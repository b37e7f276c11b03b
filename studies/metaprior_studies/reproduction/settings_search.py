"""The search for settings that the paper leaves open: PACOH on N target tasks, on draws that no figure uses."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from metaprior_studies.open_settings import OpenSettings, validation_seeds
from metaprior_studies.reproduction.fewshot_figure import Figure4
from metaprior_studies.reproduction.schemes import OnChunk, Scheme, score
from metaprior_studies.reproduction.sinusoid_figures import Figure5
from metaprior_studies.schema import ALL, FEATURE, PIXEL
from metaprior_studies.study import Point, Rows, make_rows

if TYPE_CHECKING:
    import pandas as pd

VALIDATED = Figure4(n_test_tasks=50, n_pixel_test_tasks=25)
LENGTHS = ("median", 1e3, 1e4, 1e5)  # l of SVGD; squared distances of particles grow with their number of parameters
PIXEL_LENGTHS = ("median", 1e4, 1e5, 1e6)


@dataclass(frozen=True)
class Grid:
    """The candidates for one problem and inference method: all combinations of these values."""

    data: str
    method: str
    n_draws: int
    learning_rates: tuple[float, ...]
    n_steps: tuple[int, ...]
    prior_std: tuple[float, ...]
    length_scales: tuple[float | str, ...] = ("median",)


@dataclass(frozen=True)
class SettingsSearch:
    """Score candidates as PACOH on N target tasks: the sinusoid at deviation 0.75, and CUB's validation classes."""

    grids: tuple[Grid, ...] = (
        Grid("sinusoid", "map", 128, (1e-3, 3e-3, 1e-2), (1000, 2000, 4000), (1.0, 2.0, 4.0, 6.0, 8.0, 11.0, 16.0)),
        Grid(FEATURE, "map", 16, (1e-5, 1e-4, 1e-3, 1e-2), (30, 100, 300, 1000), (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
        Grid(PIXEL, "map", 4, (1e-5, 1e-4, 1e-3), (50, 200, 1000), (0.1, 0.3, 1.0, 3.0, 10.0)),
        Grid(FEATURE, "svgd", 16, (1e-3, 1e-2, 3e-2), (100, 300, 1000), (0.03, 0.1, 0.3, 1.0, 3.0), LENGTHS),
        Grid(
            PIXEL, "svgd", 4, (1e-4, 1e-3, 1e-2, 3e-2), (50, 200, 500), (0.03, 0.1, 0.2, 0.3, 0.5, 1.0), PIXEL_LENGTHS
        ),
    )

    name: ClassVar[str] = "settings"

    def points(self) -> Iterator[Point]:
        """Yield a point per learning rate, number of steps and length scale."""
        for place, grid in enumerate(self.grids):
            for rate in grid.learning_rates:
                for n_steps in grid.n_steps:
                    for length_scale in grid.length_scales:
                        values = {"grid": place, "rate": rate, "n_steps": n_steps, "length_scale": length_scale}
                        name = f"{grid.data}-{grid.method}-rate-{rate:g}-steps-{n_steps}-length-{length_scale}"
                        yield Point(name, values)

    def run(self, point: Point, on_chunk: OnChunk) -> Rows:
        """Return the rows of every hyper-prior scale on every draw."""
        grid, values = self.grids[point.values["grid"]], point.values
        seeds = validation_seeds(grid.n_draws)
        if grid.data == "sinusoid":
            study = Figure5(open=OpenSettings(1.0, values["rate"], values["n_steps"]))
            draws, training, n_tasks = study.draws(study.deviation, seeds), study.training, study.n_tasks
        else:
            chosen = OpenSettings(1.0, values["rate"], values["n_steps"], values["length_scale"])
            study = replace(VALIDATED, features=chosen, features_svgd=chosen, pixels=chosen, pixels_svgd=chosen)
            draws, training = study.draws(grid.data, seeds, "validation"), study.training(grid.data, grid.method)
            n_tasks = study.n_tasks
        schemes = [Scheme(ALL, 0, n_tasks, 0.0, prior_std=std) for std in grid.prior_std]
        scores = score(draws, schemes, training, on_chunk)
        metric = "rmse" if grid.data == "sinusoid" else "accuracy"
        return [
            row
            for draw, of_draw in zip(draws, scores, strict=True)
            for scheme, scored in of_draw.items()
            for row in make_rows(self._setting(grid, values, scheme), draw.seed, ALL, {metric: scored[metric]})
        ]

    def _setting(self, grid: Grid, values: dict[str, Any], scheme: Scheme) -> dict[str, Any]:
        return {
            "figure": self.name,
            "data": grid.data,
            "inference": grid.method,
            "deviation": 0.75 if grid.data == "sinusoid" else np.nan,
            "beta": 0.0,
            "n_target": scheme.n_target,
            "prior_std": scheme.prior_std,
            "alpha": np.nan,
            "learning_rate": values["rate"],
            "n_steps": values["n_steps"],
            "length_scale": str(values["length_scale"]),
        }


CANDIDATE = ["prior_std", "learning_rate", "n_steps", "length_scale"]


def best(table: "pd.DataFrame", data: str, method: str) -> OpenSettings:
    """Return the best of the candidates with the fewest steps among those within a standard error of the best.

    The standard error is that of the paired difference from the best. Candidates that diverged on a draw are excluded.
    """
    of_grid = table[(table["data"] == data) & (table["inference"] == method)]
    values: Any = of_grid.pivot(index="draw", columns=CANDIDATE, values="value").dropna(axis="columns")
    loss = values if data == "sinusoid" else -values
    behind = loss.sub(loss[loss.mean().idxmin()], axis="index")
    close = loss.mean()[behind.mean() <= behind.sem().fillna(0.0)]  # a single draw has no standard error
    n_steps = close.index.get_level_values("n_steps")
    prior_std, learning_rate, steps, length_scale = close[n_steps == n_steps.min()].idxmin()
    scale = length_scale if length_scale == "median" else float(length_scale)
    return OpenSettings(float(prior_std), float(learning_rate), int(steps), scale)
