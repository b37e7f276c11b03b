"""Figures 1, 2, 3 and 5 of the paper and the regime map: the sinusoid problem with the paper's prior and MAP."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metaprior.datasets import Sinusoid
from metaprior.predict.batches import predict_tasks
from metaprior.tasks.types import TestTask
from metaprior_studies.open_settings import reporting_seeds
from metaprior_studies.reproduction.schemes import (
    OnChunk,
    Scheme,
    auto_scheme,
    fit_scheme,
    paper_schemes,
    unstack_tests,
)
from metaprior_studies.reproduction.sinusoid_study import SinusoidStudy
from metaprior_studies.schema import ALL, FEW, GP, WFEM
from metaprior_studies.study import Point, Rows, make_rows

TRUTH = "task"  # the scheme name of the true function and the context in figure 2
N_CURVE = 201


@dataclass(frozen=True)
class Figure1(SinusoidStudy):
    """Test RMSE against the deviation of the target from the source, alpha = beta = 0.5."""

    deviations: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    n_source: int = 15  # beta N
    alpha: float = 0.5

    name: ClassVar[str] = "fig1"

    def points(self) -> Iterator[Point]:
        """Yield two points per deviation: trained schemes, and oracles."""
        for deviation in self.deviations:
            yield Point(f"deviation-{deviation:g}", {"deviation": deviation})
            yield Point(f"oracles-deviation-{deviation:g}", {"deviation": deviation, "oracles": True})

    def run(self, point: Point, on_chunk: OnChunk) -> Rows:
        """Return the rows of every scheme on every draw."""
        deviation = point.values["deviation"]
        if point.values.get("oracles"):
            return self.oracles(deviation, self.n_source, on_chunk)
        schemes = paper_schemes(self.n_tasks, self.n_source, self.alpha) + auto_scheme(self.n_tasks, self.n_source)
        return self.measure(deviation, self.n_source, schemes, on_chunk)


@dataclass(frozen=True)
class Figure2(SinusoidStudy):
    """Predictions on a new target task at deviation 0.5, alpha = beta = 0.2, and their scores on many tasks."""

    deviation: float = 0.5
    n_source: int = 6  # beta N
    alpha: float = 0.2

    name: ClassVar[str] = "fig2"

    def points(self) -> Iterator[Point]:
        """Yield points for trained schemes, oracles, and the curves of one task."""
        for kind in ("schemes", "oracles", "curves"):
            yield Point(kind, {"kind": kind})

    def run(self, point: Point, on_chunk: OnChunk) -> Rows:
        """Return the rows of a point: every scheme on every draw, or the curves."""
        schemes = paper_schemes(self.n_tasks, self.n_source, self.alpha)
        if point.name == "curves":
            return self._curves([scheme for scheme in schemes if scheme.name in (GP, FEW, WFEM, ALL)])
        if point.name == "oracles":
            return self.oracles(self.deviation, self.n_source, on_chunk)
        return self.measure(self.deviation, self.n_source, schemes, on_chunk)

    def _curves(self, schemes: list[Scheme]) -> Rows:
        """Return mean and 90% band of each scheme on a new task, after meta-training on the tasks of the first draw."""
        [draw] = self.draws(self.deviation, reporting_seeds(1))
        environment, rng = Sinusoid(self.deviation, noise_std=self.noise_std), np.random.default_rng([draw.seed, 1])
        function = environment.target_functions(1, rng)
        x_context, y_context = environment.observe(function, self.n_samples, rng)
        x = np.linspace(-5.0, 5.0, N_CURVE)
        test = TestTask(x_context[..., None], y_context, x[None, :, None], function(x))
        rows: Rows = []
        for scheme in schemes:
            [ensemble] = fit_scheme([draw], scheme, self.training)
            assert ensemble is not None  # alpha is given, so no search can diverge
            predictive, _, _ = predict_tasks(ensemble, unstack_tests(test))
            lower, upper = predictive.interval(0.9)
            for metric, values in (("mean", predictive.mean()), ("lower", lower), ("upper", upper)):
                rows += self._curve(scheme.name, metric, x, values[0])
        return (
            rows
            + self._curve(TRUTH, "truth", x, function(x)[0])
            + self._curve(TRUTH, "context", x_context[0], y_context[0])
        )

    def _curve(self, scheme: str, metric: str, x: np.ndarray, values: np.ndarray) -> Rows:
        setting = self.setting(self.deviation, self.n_source)
        pairs = zip(x.tolist(), values.tolist(), strict=True)
        return [row for at, value in pairs for row in make_rows({**setting, "x": at}, 0, scheme, {metric: value})]


@dataclass(frozen=True)
class Figure3(SinusoidStudy):
    """Test RMSE against the share beta of source tasks, alpha = beta, deviation 0.75."""

    deviation: float = 0.75
    n_source: tuple[int, ...] = tuple(range(0, 31, 3))  # beta N

    name: ClassVar[str] = "fig3"

    def points(self) -> Iterator[Point]:
        """Yield a point per share, and one for the oracles, which do not depend on it."""
        for n_source in self.n_source:
            yield Point(f"sources-{n_source}", {"n_source": n_source})
        yield Point("oracles", {"oracles": True})

    def run(self, point: Point, on_chunk: OnChunk) -> Rows:
        """Return the rows of every scheme on every draw."""
        if point.values.get("oracles"):
            return self.oracles(self.deviation, 0, on_chunk)
        n_source = point.values["n_source"]
        schemes = paper_schemes(self.n_tasks, n_source, n_source / self.n_tasks) + auto_scheme(self.n_tasks, n_source)
        return self.measure(self.deviation, n_source, schemes, on_chunk)


@dataclass(frozen=True)
class Figure5(SinusoidStudy):
    """Test RMSE against alpha, beta = 0.4, deviation 0.75."""

    deviation: float = 0.75
    n_source: int = 12  # beta N
    alphas: tuple[float, ...] = tuple(k / 10 for k in range(11))

    name: ClassVar[str] = "fig5"

    def points(self) -> Iterator[Point]:
        """Yield points for the schemes without alpha, for every alpha, and for the oracles."""
        yield Point("others", {"kind": "others"})
        for alpha in self.alphas:
            yield Point(f"alpha-{alpha:g}", {"alpha": alpha})
        yield Point("oracles", {"kind": "oracles"})

    def run(self, point: Point, on_chunk: OnChunk) -> Rows:
        """Return the rows of every scheme on every draw."""
        n_target = self.n_tasks - self.n_source
        if point.values.get("kind") == "oracles":
            return self.oracles(self.deviation, self.n_source, on_chunk)
        if point.values.get("kind") == "others":
            schemes = paper_schemes(self.n_tasks, self.n_source, None) + auto_scheme(self.n_tasks, self.n_source)
        else:
            schemes = [Scheme(WFEM, self.n_source, n_target, point.values["alpha"])]
        return self.measure(self.deviation, self.n_source, schemes, on_chunk)


@dataclass(frozen=True)
class RegimeMap(SinusoidStudy):
    """Where transfer helps: WFEM over alpha against PACOH on the target tasks alone, N = 30 tasks in all."""

    n_draws: int = 50
    deviations: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    n_target: tuple[int, ...] = (3, 5, 10, 15, 20)
    strengths: tuple[float, ...] = (0.5, 1.0, 2.0)  # multiples of the chosen sigma_P
    alphas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)

    name: ClassVar[str] = "regime"

    def points(self) -> Iterator[Point]:
        """Yield a point per number of target tasks, scale of the hyper-prior and deviation."""
        for n_target in self.n_target:
            for strength in self.strengths:
                for deviation in self.deviations:
                    values = {"n_target": n_target, "strength": strength, "deviation": deviation}
                    yield Point(f"targets-{n_target}-strength-{strength:g}-deviation-{deviation:g}", values)

    def run(self, point: Point, on_chunk: OnChunk) -> Rows:
        """Return the rows of target-only and of every alpha on every draw."""
        n_target, strength = point.values["n_target"], point.values["strength"]
        n_source = self.n_tasks - n_target
        schemes = [Scheme(WFEM, n_source, n_target, alpha, prior_std=strength) for alpha in self.alphas]
        schemes.append(Scheme(FEW, 0, n_target, 0.0, prior_std=strength))
        return self.measure(point.values["deviation"], n_source, schemes, on_chunk)
