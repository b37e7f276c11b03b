"""The studies of the quick and the full profile, by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from metaprior_studies.reproduction.fewshot_figure import Figure4, available
from metaprior_studies.reproduction.settings_search import SettingsSearch
from metaprior_studies.reproduction.sinusoid_figures import Figure1, Figure2, Figure3, Figure5, RegimeMap
from metaprior_studies.schema import DEFAULT, FEATURE, FIGURES, GENERATED, PIXEL

FULL: dict[str, Any] = {
    "fig1": Figure1(),
    "fig2": Figure2(),
    "fig3": Figure3(),
    "fig4": Figure4(),
    "fig5": Figure5(),
    "regime": RegimeMap(),
}

# The settings of FULL with fewer draws (the first ones) and fewer points.
QUICK: dict[str, Any] = {
    "fig1": Figure1(n_draws=10, deviations=(0.0, 0.5, 1.0)),
    "fig2": Figure2(n_draws=10),
    "fig3": Figure3(n_draws=10, n_source=(0, 15, 24, 30)),
    "fig4": Figure4(
        n_draws=5,
        n_pixel_draws=2,
        draws_per_point=5,
        alphas=(0.2, 0.5),
        pixel_alphas=(0.2, 0.5),
        inference=((FEATURE, ("map", "svgd")), (DEFAULT, ("map", "svgd")), (PIXEL, ("map",))),
        with_auto=(FEATURE,),
        n_pixel_test_tasks=20,
    ),
    "fig5": Figure5(n_draws=10, alphas=(0.0, 0.1, 0.2, 0.4, 0.7, 1.0)),
    "regime": RegimeMap(
        n_draws=10, deviations=(0.0, 0.5, 1.0), n_target=(5, 15), strengths=(1.0,), alphas=(0.1, 0.35, 0.7)
    ),
}
PROFILES = {"quick": QUICK, "full": FULL}


def studies(name: str, profile: str, n_draws: int | None, on_missing: Callable[[str], None]) -> list[Any]:
    """Return the studies that a name of the command line stands for; figure 4 leaves out missing data sets."""
    if name == "settings":
        search = SettingsSearch()
        at_hand = {grid.data for grid in search.grids if grid.data == "sinusoid" or available(grid.data)}
        for data in {grid.data for grid in search.grids} - at_hand:
            on_missing(data)
        grids = [grid for grid in search.grids if grid.data in at_hand]
        return [SettingsSearch(tuple(grid if n_draws is None else replace(grid, n_draws=n_draws) for grid in grids))]
    chosen = [PROFILES[profile][figure] for figure in (FIGURES if name == "all" else (name,))]
    chosen = [_with_data_at_hand(study, on_missing) if isinstance(study, Figure4) else study for study in chosen]
    return chosen if n_draws is None else [_with_draws(study, n_draws) for study in chosen]


def _with_draws(study: Any, n_draws: int) -> Any:
    pixels = {"n_pixel_draws": n_draws} if isinstance(study, Figure4) else {}
    return replace(study, n_draws=n_draws, **pixels)


def _with_data_at_hand(figure: Figure4, on_missing: Callable[[str], None]) -> Figure4:
    kept = tuple((data, methods) for data, methods in figure.inference if available(data))
    for data, _ in figure.inference:
        if data not in dict(kept):
            on_missing(data)
    return replace(figure, inference=kept or ((GENERATED, ("map", "svgd")),))
