"""How the default fits a prior: families of hierarchical priors, compared by cross-validation and averaged."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from metaprior.checks import draw_seed
from metaprior.estimators.arguments import NamedEnvironments, names_elsewhere, warn_if_no_target_tasks
from metaprior.estimators.base import Estimator, MetaGP
from metaprior.estimators.files import FileFormat, Header, Model
from metaprior.estimators.fitted_prior import FittedPrior
from metaprior.files import Arrays, check_weights, require
from metaprior.float_errors import own_float_errors
from metaprior.predict.ensemble import Ensemble
from metaprior.progress import phases
from metaprior.tasks.context_rules import as_context_rule
from metaprior.tasks.input_columns import Features
from metaprior.tasks.types import TestTask

# What priors of networks have, which are trained by gradients.
OF_NETWORKS = ("kernel", "mean", "encoder", "inference", "n_particles", "temperature", "hyperprior", "prior_mean")
OF_NETWORKS += ("prior_std", "training", "optimizer", "learning_rate", "schedule", "n_steps", "batch_size")
OF_NETWORKS += ("standardize", "dtype", "n_devices", "validation_tasks", "patience", "checkpoint")


def in_wfem(estimator: str) -> Mapping[str, str]:
    """Return which estimator to use for an argument of priors of networks."""
    return MappingProxyType(dict.fromkeys(OF_NETWORKS, f"metaprior.wfem.{estimator}, whose priors are networks"))


def _model_parts(model: Any) -> tuple[list[dict[str, Any]], Arrays]:
    from metaprior.prior.files import members_to_parts

    stored, arrays = members_to_parts(model.members)
    return stored, arrays | {"member_weights": np.asarray(model.weights, np.float64)}


def _read_model(meta: Any, stored: Model, header: Header, arrays: Arrays) -> Any:
    from metaprior.prior.files import Known, read_members

    classes = header.fitted.classes_
    n_classes = len(classes) if isinstance(classes, list) else 0
    require(len(stored.members) == stored.n_members, f"members must be a list of {stored.n_members}")
    known = Known(header.input_dim, header.training.scaling, meta.likelihood_, n_classes, meta.features_.kinds)
    weights = check_weights("member_weights", arrays.get("member_weights"), len(stored.members))
    return Ensemble(read_members(stored.members, arrays, known), weights)


@own_float_errors
class HierarchicalFit(MetaGP):
    """An estimator whose priors are hierarchical, and fitted in NumPy in seconds."""

    search_time: Any
    progress: Any
    _file_format = FileFormat(_model_parts, _read_model)
    _fits_pooled_models = True

    @names_elsewhere
    def fit(
        self: Estimator,
        source_tasks: Iterable[Any] | Mapping[Any, Any] | None = None,
        target_tasks: Iterable[Any] | None = None,
        *,
        target: Any = None,
    ) -> Estimator:
        """Meta-train the prior.

        Parameters
        ----------
        source_tasks, target_tasks : sequence of (X, y), StoredTasks or None
            The tasks of the two environments, one pair of arrays per task, of any lengths. For more than two
            environments pass a dict from names to tasks as `source_tasks` and name the target.
        target : str, optional
            The target environment if `source_tasks` is a dict.

        Returns
        -------
        self
            If the fit fails or is interrupted, the estimator stays as it was.
        """
        return self._fit_anew(source_tasks, target_tasks, target)

    def _fit_prior(
        self, environments: NamedEnvironments, features: Features, **how: Any
    ) -> tuple[FittedPrior, list[TestTask] | None]:
        from metaprior.estimators.fit import (
            check_target_tasks,
            fit_conformal,
            fit_prior,  # a loaded prior does without these
        )
        from metaprior.search.compare import Asked

        conformal = getattr(self, "conformal", False)  # labels have no intervals
        if conformal:
            check_target_tasks(environments)
        warn_if_no_target_tasks(environments, self.alpha)
        asked = Asked(
            *(self._problem(), environments.names, environments.target, self.alpha, environments.kinds),
            *(as_context_rule(self.context), self.search_time, draw_seed(self.random_state), self.progress),
        )
        with phases(int(conformal)):
            fitted = fit_prior(asked, environments)
            if conformal:
                conformal = fit_conformal(asked, fit_prior, environments)
                fitted = replace(fitted, model=fitted.model._replace(conformal=conformal))
        return fitted, None

    @abstractmethod
    def _problem(self) -> Any:
        """Return what the search needs to know of y, once tasks are checked."""
