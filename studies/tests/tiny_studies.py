"""The studies of the paper's figures with few draws and tasks and small networks: they share a handful of programs."""

from functools import partial

from metaprior.wfem import MLPKernel, MLPMean
from metaprior.wfem.settings import Settings
from metaprior_studies.open_settings import OpenSettings
from metaprior_studies.reproduction import fewshot_figure, sinusoid_study
from metaprior_studies.reproduction.fewshot_figure import Figure4
from metaprior_studies.reproduction.sinusoid_figures import Figure1, Figure2, Figure3, Figure5, RegimeMap
from metaprior_studies.schema import GENERATED

MEAN, KERNEL = MLPMean((4,)), MLPKernel((4,), n_features=2)
SHORT = OpenSettings(prior_std=6.0, learning_rate=1e-2, n_steps=20)
TINY = {"n_draws": 2, "n_tasks": 4, "n_test_tasks": 3, "n_queries": 4, "open": SHORT}
STUDIES = {
    "fig1": Figure1(deviations=(0.0, 1.0), n_source=2, **TINY),
    "fig2": Figure2(n_source=2, **TINY),
    "fig3": Figure3(n_source=(0, 2, 4), **TINY),
    "fig4": Figure4(
        n_draws=2,
        n_tasks=4,
        n_source=2,
        alphas=(0.5,),
        with_auto=(),
        inference=((GENERATED, ("map",)),),
        n_test_tasks=2,
        features=SHORT,
        features_svgd=SHORT,
    ),
    "fig5": Figure5(n_source=2, alphas=(0.0, 0.4), **TINY),
    "regime": RegimeMap(n_target=(2,), deviations=(0.0, 1.0), strengths=(1.0, 2.0), alphas=(0.5,), **TINY),
}


def use_small_networks(monkeypatch):
    """Replace the paper's networks in all studies; those of four layers take several times as long to compile."""
    monkeypatch.setattr(sinusoid_study, "Settings", partial(Settings, mean=MEAN, kernel=KERNEL))
    monkeypatch.setattr(fewshot_figure, "MLPMean", lambda: MEAN)
    monkeypatch.setattr(fewshot_figure, "MLPKernel", lambda: KERNEL)
