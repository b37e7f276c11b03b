"""Real environments: every scheme on new source, target and test tasks in every draw."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from metaprior.estimators.regression_baselines import score_per_task_gp
from metaprior.estimators.regressor import MetaGPRegressor
from metaprior.gp.prior import AUTO, families
from metaprior.tasks.types import Task
from metaprior.training.loop import TrainingDiverged
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.grouped_tasks import GroupedTasks
from metaprior_studies.environments.real_tables import (
    colorado,
    intel_berkeley,
    physionet_gcs,
    physionet_hct,
    ujiindoorloc,
)
from metaprior_studies.open_settings import reporting_seeds
from metaprior_studies.study import Point, Rows

GP = "GP"  # the prior at its initial theta: the target tasks are used to scale it alone
PER_TASK = "scikit-learn GP per task"
TARGET_ONLY = "PACOH, target-only"
POOLED = "PACOH, pooled"
DEFAULT = "WFEM, default"  # alpha and the kernel chosen by held-out target tasks
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
    """The name of WFEM at a fixed alpha."""
    return f"WFEM, alpha = {alpha:g}"


class Scheme(NamedTuple):
    """A way to learn from a draw: the tasks it sees, and what differs from the estimator's defaults."""

    name: str
    n_source: int
    n_target: int
    arguments: dict[str, Any]


@dataclass(frozen=True)
class RealStudy:
    """All schemes on one environment. A row per draw, scheme and metric: the metric's mean over test tasks."""

    name: str  # of the environment
    n_draws: int = 10
    n_source: int = 40
    n_target: int = 5
    n_many: int = 40  # target tasks of the last scheme: the others see the first n_target of them
    n_test: int = 60
    max_samples: int | None = None  # of a meta-training task
    alphas: tuple[float, ...] = (0.1, 0.2, 0.5, 0.8)
    n_steps: int = 2000

    def points(self) -> Iterator[Point]:
        """A draw each."""
        for draw in reporting_seeds(self.n_draws):
            yield Point(f"draw-{draw}", {"draw": draw})

    def draw(self, seed: int, data: GroupedTasks) -> DrawnTasks:
        """The tasks of a draw: the target's are all that any scheme sees, and the test's are the same for all."""
        return data.draw(self.n_source, self.n_many, self.n_test, seed, self.max_samples)

    def schemes(self, kernel: str) -> list[Scheme]:
        """What is meta-trained; all but the default with one kernel, the one that the default tries first."""
        few, alone = (self.n_source, self.n_target), (0, self.n_target)
        return [
            Scheme(GP, *alone, {"alpha": 0.0, "kernel": kernel, "n_steps": 0}),
            Scheme(TARGET_ONLY, *alone, {"alpha": 0.0, "kernel": kernel}),
            Scheme(POOLED, *few, {"alpha": "pooled", "kernel": kernel}),
            *(Scheme(wfem(alpha), *few, {"alpha": alpha, "kernel": kernel}) for alpha in self.alphas),
            Scheme(DEFAULT, *few, {}),
            Scheme(MANY, 0, self.n_many, {"alpha": 0.0, "kernel": kernel}),
        ]

    def run(self, point: Point, on_chunk: Callable[[str], None]) -> Rows:
        """Every scheme on one draw."""
        seed = point.values["draw"]
        tasks = self.draw(seed, ENVIRONMENTS[self.name]())
        on_chunk(PER_TASK)
        rows = self._rows(seed, Scheme(PER_TASK, 0, 0, {}), score_per_task_gp(tasks.test), "rbf", np.nan)
        for scheme in self.schemes(first_kernel(tasks.target)):
            on_chunk(scheme.name)
            meta = MetaGPRegressor(
                **{"noise_std": "learned", "n_steps": self.n_steps, **scheme.arguments},
                random_state=seed,
                progress=False,
            )
            try:
                meta.fit(tasks.source[: scheme.n_source] or None, tasks.target[: scheme.n_target])
            except TrainingDiverged:
                rows += self._rows(seed, scheme, dict.fromkeys(METRICS, np.nan), "", np.nan)
            else:
                rows += self._rows(seed, scheme, meta.evaluate(tasks.test), meta.family_, meta.alpha_)
        return rows

    def _rows(self, draw: int, scheme: Scheme, scores: dict[str, Any], kernel: str, alpha: float) -> Rows:
        shared = {
            "data": self.name,
            "scheme": scheme.name,
            "n_source": scheme.n_source,
            "n_target": scheme.n_target,
            "kernel": kernel,  # the one that was used
            "alpha": alpha,  # that was used, on average where predictions are averaged
            "draw": draw,
        }
        return [{**shared, "metric": metric, "value": float(scores[metric])} for metric in METRICS]


def first_kernel(tasks: list[Task]) -> str:
    """The kernel that kernel="auto" tries first."""
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
