"""What held-out tasks certify about transfer, and the weighted free energy as a PAC-Bayes diagnostic."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import bdtrc, betaincinv

from metaprior.checks import counted
from metaprior.prior.families import LINEAR, SMOOTH, FamilyFit
from metaprior.tasks.types import Task

CONFIDENCE = 0.95
WITHOUT_DATA = (LINEAR, SMOOTH)  # families whose functions do not depend on y; those of the others do


class Certificate(NamedTuple):
    """How many tasks are predicted better by one prior than by another, and what that says about new tasks."""

    helped: int
    tied: int  # predicted equally well, which counts as not helped
    n_tasks: int

    @property
    def lower_bound(self) -> float:
        """The lower 95% confidence bound of Clopper and Pearson on the chance that a new task is predicted better.

        It is exact for independent tasks that neither prior has seen.
        """
        if not self.helped:
            return 0.0
        return float(betaincinv(self.helped, self.n_tasks - self.helped + 1, 1.0 - CONFIDENCE))

    @property
    def p_value(self) -> float:
        """That of the one-sided sign test of "as often worse as better"; ties are left out."""
        return float(bdtrc(self.helped - 1, self.n_tasks - self.tied, 0.5))

    @property
    def words(self) -> str:
        """The share of tasks and the bound, without a full stop."""
        helped = f"{self.helped} of {counted(self.n_tasks, 'task')} are predicted better"
        tied = f" ({self.tied} equally well)" if self.tied else ""
        least = np.floor(100.0 * self.lower_bound)
        return f"{helped}{tied}; for a new task the chance is at least {least:.0f}% (95% confidence, Clopper-Pearson)"


def certify(gains: np.ndarray) -> Certificate:
    """Count the tasks with a gain."""
    return Certificate(int(np.sum(gains > 0)), int(np.sum(gains == 0)), len(gains))


def free_energy(fit: FamilyFit, environments: Sequence[Sequence[Task]]) -> float:
    """Return the weighted free energy at the Gibbs hyper-posterior, in nats per reading: smaller is better.

    It is -log Z / n, where Z is the integral of p(theta) times the weighted evidence, by Laplace's approximation at the
    mode of theta, with the Hessian that the quasi-Newton method has found on its way there, and n the number of
    readings, weighted as their tasks are. NaN if no family that qualifies is there.
    """
    values = []
    for name in WITHOUT_DATA:
        if name not in fit.modes or name not in fit.priors or fit.priors[name].counts is None:
            continue
        mode, prior = fit.modes[name], fit.priors[name]
        sizes = [sum(len(task.y) for task in tasks) for tasks in environments]
        n = float(prior.counts @ sizes)  # type: ignore[operator]
        log_determinant = np.linalg.slogdet(mode.inverse_hessian)[1]
        hyper_prior = -float(np.log(mode.layout.spread).sum())  # factors of 2 pi cancel Laplace's
        log_z = mode.value - 0.5 * n * np.log(2.0 * np.pi) + hyper_prior + 0.5 * log_determinant
        values.append(-log_z / n + np.log(prior.scaling.y_std))
    return float(min(values, default=np.nan))
