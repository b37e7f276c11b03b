"""Figure 4 of the paper: two-way five-shot classification, mini-ImageNet to CUB, MAP and SVGD, against alpha."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from metaprior.tasks.types import Task, TestTask
from metaprior.wfem import MAP, SVGD, HyperPrior, LinearRBFKernel, MLPKernel, MLPMean, ZeroMean
from metaprior.wfem.likelihoods import Bernoulli
from metaprior.wfem.settings import Settings
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.generated import generated_images
from metaprior_studies.environments.images import DataMissing, cub, features, mini_imagenet
from metaprior_studies.open_settings import (
    FEATURES,
    FEATURES_SVGD,
    PIXELS,
    PIXELS_SVGD,
    OpenSettings,
    reporting_seeds,
)
from metaprior_studies.reproduction.schemes import (
    Draw,
    OnChunk,
    Scheme,
    Training,
    auto_scheme,
    paper_schemes,
    score,
    stack_tests,
)
from metaprior_studies.schema import DEFAULT, FEATURE, GENERATED, LABEL_METRICS, PIXEL, WFEM
from metaprior_studies.study import Point, Rows, make_rows

N_PARTICLES = 10  # K of SVGD
PIXEL_BLOCK = 5


@dataclass(frozen=True)
class Figure4:
    """Test accuracy against alpha, N = 20, beta = 0.5, five images a class, fifteen queries a class.

    The paper's prior is used on raw pixels and on frozen features of an encoder trained on ImageNet; on features also
    a linear and an RBF kernel ("default prior"). `inference` lists the inference methods of each data set.
    """

    n_draws: int = 60
    n_pixel_draws: int = 20
    n_tasks: int = 20  # N
    n_source: int = 10  # beta N
    alphas: tuple[float, ...] = tuple(k / 10 for k in range(11))
    pixel_alphas: tuple[float, ...] = tuple(k / 10 for k in range(11))
    inference: tuple[tuple[str, tuple[str, ...]], ...] = (
        (FEATURE, ("map", "svgd")),
        (DEFAULT, ("map", "svgd")),
        (PIXEL, ("map", "svgd")),
    )
    with_auto: tuple[str, ...] = (FEATURE, DEFAULT, PIXEL, GENERATED)
    n_test_tasks: int = 100
    n_pixel_test_tasks: int = 50
    draws_per_point: int = 10
    features: OpenSettings = FEATURES
    features_svgd: OpenSettings = FEATURES_SVGD
    pixels: OpenSettings = PIXELS
    pixels_svgd: OpenSettings = PIXELS_SVGD

    name: ClassVar[str] = "fig4"

    def points(self) -> Iterator[Point]:
        """Yield a point per block of draws, data set and inference method."""
        for data, methods in self.inference:
            for method in methods:
                for first in range(0, self._n_draws(data), self._block(data)):
                    name = f"{data.replace(',', '').replace(' ', '-')}-{method}-{first}"
                    yield Point(name, {"data": data, "method": method, "first": first})

    def run(self, point: Point, on_chunk: OnChunk) -> Rows:
        """Return the rows of every scheme on the draws of a point."""
        data, method, first = (point.values[name] for name in ("data", "method", "first"))
        seeds = reporting_seeds(self._n_draws(data))[first : first + self._block(data)]
        schemes = paper_schemes(self.n_tasks, self.n_source, None)
        n_target = self.n_tasks - self.n_source
        alphas = self.pixel_alphas if data == PIXEL else self.alphas
        schemes += [Scheme(WFEM, self.n_source, n_target, alpha) for alpha in alphas]
        if data in self.with_auto:
            schemes += auto_scheme(self.n_tasks, self.n_source)
        draws = self.draws(data, seeds)
        scores = score(draws, schemes, self.training(data, method), on_chunk)
        return [
            row
            for draw, of_draw in zip(draws, scores, strict=True)
            for scheme, values in of_draw.items()
            for row in self._rows(data, method, scheme, draw.seed, values)
        ]

    def draws(self, data: str, seeds: Sequence[int], split: str = "test") -> list[Draw]:
        """Draw source, target and test tasks; with split 'validation' test tasks are of validation classes."""
        episodes = load(data)
        n_tests = self.n_pixel_test_tasks if data == PIXEL else self.n_test_tasks
        draws = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            source = [_ready(task, data) for task in episodes.source_tasks(self.n_source, rng)]
            target = [_ready(task, data) for task in episodes.target_tasks(self.n_tasks, rng)]
            tests = (episodes.test_tasks if split == "test" else episodes.validation_tasks)(n_tests, rng)
            draws.append(Draw(seed, source, target, stack_tests([_ready_test(test, data) for test in tests])))
        return draws

    def training(self, data: str, method: str) -> Training:
        """Return the paper's prior, temperature gamma and hyper-prior, or a linear and an RBF kernel."""
        if data == DEFAULT:
            inference = MAP() if method == "map" else SVGD(N_PARTICLES)
            settings = Settings(
                ZeroMean(),
                LinearRBFKernel(),
                likelihood=Bernoulli(),
                temperature="bayes",
                method=inference,
                standardize="within-class",
            )
            return Training(settings, learning_rate=1e-2, n_steps=1000)
        of_map, of_svgd = (self.pixels, self.pixels_svgd) if data == PIXEL else (self.features, self.features_svgd)
        chosen = of_map if method == "map" else of_svgd
        # The paper draws the initial particles of SVGD from the hyper-prior.
        svgd = SVGD(N_PARTICLES, chosen.length_scale, start="hyperprior")  # type: ignore[arg-type]
        settings = Settings(
            MLPMean(),
            MLPKernel(),
            likelihood=Bernoulli(),
            temperature="paper",
            hyperprior=HyperPrior(std=chosen.prior_std),
            method=MAP() if method == "map" else svgd,
            standardize=data != PIXEL,
        )
        return Training(settings, chosen.learning_rate, chosen.n_steps)

    def _n_draws(self, data: str) -> int:
        return min(self.n_draws, self.n_pixel_draws) if data == PIXEL else self.n_draws

    def _block(self, data: str) -> int:
        """Return the number of draws in a point, small for pixels so that their images fit in memory."""
        return min(self.draws_per_point, PIXEL_BLOCK) if data == PIXEL else self.draws_per_point

    def _rows(self, data: str, method: str, scheme: Scheme, draw: int, values: dict[str, float]) -> Rows:
        setting = {
            "figure": self.name,
            "data": data,
            "inference": method,
            "deviation": np.nan,
            "beta": self.n_source / self.n_tasks,
            "n_target": self.n_tasks - self.n_source,
            "prior_std": self.training(data, method).settings.prior_std["weights"],
            "alpha": scheme.alpha if scheme.name == WFEM else np.nan,
        }
        return make_rows(setting, draw, scheme.name, {metric: values[metric] for metric in LABEL_METRICS})


def available(data: str) -> bool:
    """Return whether the files of a data set are present."""
    try:
        load(data)
    except DataMissing:
        return False
    return True


@lru_cache
def load(data: str) -> FewShot:
    """Return source and target of a data set by name."""
    if data == GENERATED:
        return FewShot(*generated_images())
    if data == PIXEL:
        return FewShot(mini_imagenet(), cub())
    return FewShot(features("miniimagenet"), features("cub"))


def _ready(task: Task, data: str) -> Task:
    """Return a task with labels as numbers and pixels scaled to [-2, 2], the same for every scheme."""
    return Task(_pixels(task.x) if data == PIXEL else task.x, task.y.astype(float))


def _ready_test(test: TestTask, data: str) -> TestTask:
    x_context, x_query = (_pixels(x) if data == PIXEL else x for x in (test.x_context, test.x_query))
    return TestTask(x_context, test.y_context.astype(float), x_query, test.y_query.astype(float))


def _pixels(x: np.ndarray) -> np.ndarray:
    return ((x - 0.5) * 4.0).astype(np.float32)
