"""Compare all schemes on real environments; every draw has new source, target and test tasks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprior.estimators.baselines import score_per_task_gp
from metaprior.estimators.regressor import MetaGPRegressor
from metaprior.tasks.types import Task
from metaprior.wfem.choices import AUTO, families
from metaprior.wfem.divergence import TrainingDiverged
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.grouped_tasks import GroupedTasks
from metaprior_studies.environments.real_tables import (
    colorado,
    intel_berkeley,
    physionet_gcs,
    physionet_hct,
    ujiindoorloc,
)
from metaprior_studies.estimator_schemes import EstimatorScheme, fit_and_score
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
    n_steps: int = 2000  # of all schemes but the default, which is not trained by gradients

    def points(self) -> Iterator[Point]:
        """Yield a point per draw."""
        for draw in reporting_seeds(self.n_draws):
            yield Point(f"draw-{draw}", {"draw": draw})

    def draw(self, seed: int, data: GroupedTasks) -> DrawnTasks:
        """Draw the tasks of all schemes, which share the test tasks."""
        return data.draw(self.n_source, self.n_many, self.n_test, seed, self.max_samples)

    def schemes(self, kernel: str) -> list[EstimatorScheme]:
        """Return the meta-trained schemes; all but the default are trained by gradients, with the given kernel."""
        few, alone = (self.n_source, self.n_target), (0, self.n_target)
        trained = {"kernel": kernel, "n_steps": self.n_steps}
        return [
            EstimatorScheme(GP, *alone, {"alpha": 0.0, "kernel": kernel, "n_steps": 0}),
            EstimatorScheme(TARGET_ONLY, *alone, {"alpha": 0.0, **trained}),
            EstimatorScheme(POOLED, *few, {"alpha": "pooled", **trained}),
            *(EstimatorScheme(wfem(alpha), *few, {"alpha": alpha, **trained}) for alpha in self.alphas),
            EstimatorScheme(DEFAULT, *few, {}),
            EstimatorScheme(MANY, 0, self.n_many, {"alpha": 0.0, **trained}),
        ]

    def run(self, point: Point, on_chunk: Callable[[str], None]) -> Rows:
        """Return the rows of every scheme on one draw."""
        seed = point.values["draw"]
        tasks = self.draw(seed, ENVIRONMENTS[self.name]())
        on_chunk(PER_TASK)
        rows = self._rows(seed, EstimatorScheme(PER_TASK, 0, 0, {}), score_per_task_gp(tasks.test), "rbf", np.nan)
        for scheme in self.schemes(first_kernel(tasks.target)):
            on_chunk(scheme.name)
            meta = scheme.estimator(MetaGPRegressor, noise_std="learned", random_state=seed)
            try:
                scores, _ = fit_and_score(meta, scheme.tasks(tasks))
            except TrainingDiverged:
                rows += self._rows(seed, scheme, dict.fromkeys(METRICS, np.nan), "", np.nan)
            else:
                rows += self._rows(seed, scheme, scores, meta.family_, meta.alpha_)
        return rows

    def _rows(self, draw: int, scheme: EstimatorScheme, scores: Mapping[str, Any], kernel: str, alpha: float) -> Rows:
        shared = {
            "data": self.name,
            "scheme": scheme.name,
            "n_source": scheme.n_source,
            "n_target": scheme.n_target,
            "kernel": kernel,
            "alpha": alpha,  # the mean, if predictions are averaged over alpha
            "draw": draw,
        }
        return [{**shared, "metric": metric, "value": float(scores[metric])} for metric in METRICS]


def first_kernel(tasks: list[Task]) -> str:
    """Return the kernel that kernel="auto" tries first."""
    return next(iter(families(AUTO, tasks[0].x.shape[1], None, labels=False)))


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
