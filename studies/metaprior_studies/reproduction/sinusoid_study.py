"""The sinusoid problem with the paper's prior and MAP: what figures 1, 2, 3, 5 and the regime map share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from metaprior.datasets import Sinusoid
from metaprior.predict.predictive import GaussianMixture
from metaprior.wfem import Gaussian, HyperPrior
from metaprior.wfem.runs import Settings
from metaprior_studies.environments.sinusoid_oracles import bayes_oracle, gp_oracle
from metaprior_studies.open_settings import SINUSOID, OpenSettings, reporting_seeds
from metaprior_studies.reproduction.schemes import Draw, OnChunk, Scheme, Training, score, score_mixture, stack_tests
from metaprior_studies.schema import ORACLE_BAYES, ORACLE_GP, REGRESSION_METRICS, WFEM
from metaprior_studies.study import Rows, make_rows


@dataclass(frozen=True)
class SinusoidStudy:
    """A study of the sinusoid problem. All schemes, and all points of a figure, use the same draws of tasks."""

    n_draws: int = 100
    n_tasks: int = 30  # N
    n_samples: int = 5  # M
    noise_std: float = 0.1  # sigma
    n_test_tasks: int = 100
    n_queries: int = 50
    open: OpenSettings = SINUSOID

    name: ClassVar[str]

    @property
    def training(self) -> Training:
        """The paper's prior, temperature gamma and hyper-prior."""
        hyperprior = HyperPrior(std=self.open.prior_std)
        settings = Settings(likelihood=Gaussian(self.noise_std), temperature="paper", hyperprior=hyperprior)
        return Training(settings, self.open.learning_rate, self.open.n_steps)

    def draws(self, deviation: float, seeds: Sequence[int] | None = None) -> list[Draw]:
        """Draw N source tasks, N target tasks and test tasks per seed; the deviation only moves the target's phases."""
        environment = Sinusoid(deviation, noise_std=self.noise_std)
        draws = []
        for seed in reporting_seeds(self.n_draws) if seeds is None else seeds:
            rng = np.random.default_rng(seed)
            source = environment.source_tasks(self.n_tasks, self.n_samples, rng)
            target = environment.target_tasks(self.n_tasks, self.n_samples, rng)
            test = environment.test_tasks(self.n_test_tasks, self.n_samples, self.n_queries, rng)
            draws.append(Draw(seed, source, target, stack_tests(test)))
        return draws

    def measure(self, deviation: float, n_source: int, schemes: list[Scheme], on_chunk: OnChunk) -> Rows:
        """Return the rows of all schemes on all draws."""
        draws = self.draws(deviation)
        scores = score(draws, schemes, self.training, on_chunk)
        return [
            row
            for draw, of_draw in zip(draws, scores, strict=True)
            for scheme, values in of_draw.items()
            for row in self._rows(deviation, n_source, scheme, draw.seed, values)
        ]

    def oracles(self, deviation: float, n_source: int, on_chunk: OnChunk) -> Rows:
        """Return the rows of the two oracles, which know the target environment and bound what can be learned."""
        environment, rows = Sinusoid(deviation, noise_std=self.noise_std), []
        for draw in self.draws(deviation):
            on_chunk("oracles")
            test = draw.test
            for name, oracle in ((ORACLE_GP, gp_oracle), (ORACLE_BAYES, bayes_oracle)):
                weights, mean, variance = oracle(
                    environment, test.x_context[..., 0], test.y_context, test.x_query[..., 0]
                )
                values = score_mixture(GaussianMixture(mean, variance + self.noise_std**2, weights), test.y_query)
                scheme = Scheme(name, 0, 0, 0.0)
                rows += self._rows(deviation, n_source, scheme, draw.seed, values, inference="none")
        return rows

    def _rows(
        self, deviation: float, n_source: int, scheme: Scheme, draw: int, values: dict[str, float], **others: Any
    ) -> Rows:
        alpha = scheme.alpha if scheme.name == WFEM else np.nan
        prior_std = self.open.prior_std * scheme.prior_std
        setting = {**self.setting(deviation, n_source), "alpha": alpha, "prior_std": prior_std, **others}
        return make_rows(setting, draw, scheme.name, {metric: values[metric] for metric in REGRESSION_METRICS})

    def setting(self, deviation: float, n_source: int) -> dict[str, Any]:
        """Return the columns that describe one setting."""
        return {
            "figure": self.name,
            "data": "sinusoid",
            "inference": "map",
            "deviation": deviation,
            "beta": n_source / self.n_tasks,
            "n_target": self.n_tasks - n_source,
            "prior_std": self.open.prior_std,
            "alpha": np.nan,
        }
