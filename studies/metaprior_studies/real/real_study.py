"""Compare all schemes on real environments; every draw has new source, target and test tasks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprior import MetaGPRegressor
from metaprior.estimators.comparison import score_per_task_gp
from metaprior.wfem import Training, TrainingDiverged, WFEMRegressor
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.grouped_tasks import GroupedTasks
from metaprior_studies.environments.real_tables import (
    colorado,
    intel_berkeley,
    physionet_gcs,
    physionet_hct,
    ujiindoorloc,
)
from metaprior_studies.estimator_schemes import PAPER_PRIOR, EstimatorScheme, fit_and_score
from metaprior_studies.open_settings import reporting_seeds
from metaprior_studies.study import Point, Rows

GP = "GP"  # the prior at its initial theta; the target tasks only set its scale
PER_TASK = "scikit-learn GP per task"
TARGET_ONLY = "PACOH, target-only"
POOLED = "PACOH, pooled"
DEFAULT = "WFEM, default"  # hierarchical priors; families and alpha chosen by cross-validation over target tasks
MANY = "PACOH, many target tasks"
METRICS = ("rmse", "nll", "calibration_error", "coverage", "width")

ENVIRONMENTS: dict[str, Callable[[], GroupedTasks]] = {
    "colorado": colorado,
    "physionet-gcs": physionet_gcs,
    "physionet-hct": physionet_hct,
    "ujiindoorloc": ujiindoorloc,
    "intel-berkeley": intel_berkeley,
}


def wfem(alpha: float) -> str:
    """Return the name of WFEM at a fixed alpha."""
    return f"WFEM, alpha = {alpha:g}"


@dataclass(frozen=True)
class RealStudy:
    """All schemes on one environment. A row is the mean of a metric over the test tasks of a draw and scheme."""

    name: str  # of the environment
    n_draws: int = 10
    n_source: int = 40
    n_target: int = 5
    n_many: int = 40  # target tasks of the last scheme; the others use the first n_target of them
    n_test: int = 60
    max_samples: int | None = None  # of a meta-training task
    alphas: tuple[float, ...] = (0.1, 0.2, 0.5, 0.8)
    n_steps: int = 2000  # of all schemes but the default, which is not trained in steps

    def points(self) -> Iterator[Point]:
        """Yield a point per draw."""
        for draw in reporting_seeds(self.n_draws):
            yield Point(f"draw-{draw}", {"draw": draw})

    def draw(self, seed: int, data: GroupedTasks) -> DrawnTasks:
        """Draw the tasks of all schemes, which share the test tasks."""
        return data.draw(self.n_source, self.n_many, self.n_test, seed, self.max_samples)

    def schemes(self) -> list[EstimatorScheme]:
        """Return the meta-trained schemes; all but the default have the paper's prior."""
        few, alone = (self.n_source, self.n_target), (0, self.n_target)

        def paper(name: str, counts: tuple[int, int], alpha: float | str, n_steps: int) -> EstimatorScheme:
            training = Training(n_steps=n_steps, progress=False)
            return EstimatorScheme(name, *counts, WFEMRegressor, {**PAPER_PRIOR, "alpha": alpha, "training": training})

        return [
            paper(GP, alone, 0.0, 0),
            paper(TARGET_ONLY, alone, 0.0, self.n_steps),
            paper(POOLED, few, "pooled", self.n_steps),
            *(paper(wfem(alpha), few, alpha, self.n_steps) for alpha in self.alphas),
            EstimatorScheme(DEFAULT, *few, MetaGPRegressor, {"progress": False}),
            paper(MANY, (0, self.n_many), 0.0, self.n_steps),
        ]

    def run(self, point: Point, on_chunk: Callable[[str], None]) -> Rows:
        """Return the rows of every scheme on one draw."""
        seed = point.values["draw"]
        tasks = self.draw(seed, ENVIRONMENTS[self.name]())
        on_chunk(PER_TASK)
        rows = self._rows(seed, PER_TASK, (0, 0), score_per_task_gp(tasks.test), "rbf", np.nan)
        for scheme in self.schemes():
            on_chunk(scheme.name)
            meta, counts = scheme.estimator(seed), (scheme.n_source, scheme.n_target)
            try:
                scores, _ = fit_and_score(meta, scheme.tasks(tasks))
            except TrainingDiverged:
                rows += self._rows(seed, scheme.name, counts, dict.fromkeys(METRICS, np.nan), "", np.nan)
            else:
                rows += self._rows(seed, scheme.name, counts, scores, meta.family_, meta.alpha_)
        return rows

    def _rows(
        self, draw: int, scheme: str, counts: tuple[int, int], scores: Mapping[str, Any], kernel: str, alpha: float
    ) -> Rows:
        shared = {
            "data": self.name,
            "scheme": scheme,
            "n_source": counts[0],
            "n_target": counts[1],
            "kernel": kernel,
            "alpha": alpha,  # the mean, if predictions are averaged over alpha
            "draw": draw,
        }
        return [{**shared, "metric": metric, "value": float(scores[metric])} for metric in METRICS]


STUDIES = {
    study.name: study
    for study in (
        RealStudy("colorado"),
        RealStudy("physionet-gcs", max_samples=12),
        RealStudy("physionet-hct", max_samples=12),
        RealStudy("ujiindoorloc", n_test=40, max_samples=16),
        RealStudy("intel-berkeley", n_test=40, max_samples=16),
    )
}
