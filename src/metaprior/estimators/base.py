"""What both estimators share: checks of arguments, meta-training, and files."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_is_fitted

from metaprior.checks import check_bool, check_choice, check_integer, check_positive
from metaprior.estimators import persistence
from metaprior.estimators.environments import Environments, warn_if_few_target_tasks
from metaprior.estimators.members import TrainingOptions, train_members
from metaprior.estimators.record import training_record
from metaprior.estimators.streaming import Stream, stream_of, streamed_method, train_streamed
from metaprior.files import InvalidFile, write_tensors
from metaprior.gp.prior import check_noise, families, resolve_encoder, resolve_kernel, resolve_mean
from metaprior.meta.hyperprior import check_prior_mean, check_prior_std
from metaprior.meta.methods import MAP, Interaction, Laplace, Method, interaction, resolve_inference
from metaprior.meta.objective import TEMPERATURES, batch_plan
from metaprior.meta.runs import Run, Settings, draw, empty_scaling, resolve, scaling_of, training_dtype
from metaprior.prediction.ensemble import Ensemble, Model
from metaprior.search.held_out import search_method
from metaprior.search.report import TransferReport, make_report
from metaprior.search.selection import STEPS_DIVISOR, AutoSettings, SearchOptions, choose, choose_family
from metaprior.search.weights import Weights, resolve_weights, single_source_weights
from metaprior.tasks.types import TestTask
from metaprior.training.capacity import check_memory
from metaprior.training.checkpoint import Checkpoint
from metaprior.training.checkpoint_file import fingerprint, open_checkpoint
from metaprior.training.devices import broadcast_from_first
from metaprior.training.processes import check_devices, check_same_tasks
from metaprior.training.progress import progress_bar
from metaprior.training.steps import OPTIMISERS, SCHEDULES, TrainConfig

FITTED_NUMBERS = ("alpha_", "family_", "temperature_", "dtype_", "best_step_")
FITTED_TRACES = ("environment_weights_", "loss_trace_", "validation_trace_")


class MetaGP(BaseEstimator):
    """Meta-training by weighted free energy minimization. Constructor arguments are those of the estimators."""

    likelihood: ClassVar[Literal["gaussian", "bernoulli"]]
    alpha: Any
    inference: Any
    n_particles: Any
    mean: Any
    kernel: Any
    encoder: Any
    temperature: Any
    prior_mean: Any
    prior_std: Any
    optimizer: Any
    learning_rate: Any
    schedule: Any
    n_steps: Any
    batch_size: Any
    standardize: Any
    dtype: Any
    random_state: Any
    search_time: Any
    n_devices: Any
    progress: Any

    def _fit(
        self,
        settings: Settings,
        environments: Environments,
        validation: Callable[[int], list[TestTask]] | None,
        patience: Any,
        checkpoint: str | os.PathLike | None,
    ) -> None:
        """Train on checked tasks; `validation` gives the held-out ones, once the input dimension is known."""
        if patience is not None:
            check_integer("patience", patience, least=1)
        names, tasks, target, _ = environments
        stream = stream_of(tasks, self.batch_size)
        counts = environments.counts if stream is None else stream.counts(self.alpha)
        options = resolve_weights(self.alpha, names, counts, target)
        input_dim = next(t.x.shape[1] for group in tasks for t in group)
        known = self._families(settings, input_dim, stream is not None)
        tests = None if validation is None else validation(input_dim)
        warn_if_few_target_tasks(environments, self._auto(), self.n_steps)
        started = time.monotonic()
        check_same_tasks(tasks, self.search_time)
        seed = broadcast_from_first(int(check_random_state(self.random_state).randint(2**31 - 1)))
        dtype = self._training_dtype(environments, stream, options, settings)
        searched = len(options) > 1 or len(known) > 1 or self._auto().temperature or self._auto().prior_std
        largest = max(known.values(), key=lambda each: each.n_particles)
        batch_size = self.batch_size if stream is None else stream.batch_size
        in_memory = tasks if stream is None else stream.sample(seed)
        check_memory(in_memory, largest, batch_size, searched, 8 if dtype == "float64" else 4)
        asked = "" if checkpoint is None else self._fingerprint(names, target, seed)
        with jax.enable_x64(dtype == "float64"), open_checkpoint(checkpoint, asked, seed) as (journal, seed):
            schedules = [self._schedule(each, seed, journal, batch_size) for each in known.values()]
            tasks = in_memory if stream is None else stream.sample(seed)  # a checkpoint may have another seed
            chosen = choose_family(tasks, target, options, list(known.values()), schedules)
            family, settings = list(known.items())[chosen]
            choice = choose(tasks, target, options, settings, self._auto(), schedules[chosen])
            training_options = TrainingOptions(
                int(self.n_steps), self.learning_rate, tests, patience, self.progress, journal
            )
            if stream is None:
                train_config = lambda run: self._train_config(run, settings.method, batch_size)  # noqa: E731
                fitted = train_members(tasks, choice, seed, train_config, training_options)
            else:
                train_config = TrainConfig(settings.method, self.optimizer, self.schedule, n_devices=self.n_devices)
                fitted = train_streamed(stream, tasks, choice, seed, train_config, training_options)
            self.model_, results, temperatures = fitted
        self.parameters_ = self.get_params(deep=False)  # what `save` writes, whatever is set later
        if stream is not None and resolve_inference(self.inference) is None:
            self.parameters_["inference"] = "map"
        self.report_ = make_report(choice, names, target, len(tasks[target]), sum(map(len, tasks)) - len(tasks[target]))
        self.environment_weights_ = choice.weights @ self.report_.environment_weights
        self.alpha_ = float(choice.weights @ self.report_.alpha)
        self.dtype_, self.family_ = dtype, family
        self.temperature_ = float(self.model_.weights @ temperatures)
        heaviest = int(np.argmax(self.model_.weights))
        unit = math.log(self.model_.members[heaviest].scaling.y_std)
        self.loss_trace_ = results[heaviest].loss
        self.validation_trace_ = results[heaviest].validation + unit  # a density in the units of y
        self.best_step_ = int(results[heaviest].best_step)
        self.n_features_in_ = self.model_.input_dim
        member, seconds = self.model_.members[heaviest], time.monotonic() - started
        self.training_ = training_record(environments, member, self.loss_trace_[: self.best_step_ or None], seconds)

    def _fingerprint(self, names: tuple[str, ...], target: int, seed: int) -> str:
        """Of what was asked; where a `random_state` was left open, a fit that goes on keeps the seed it had."""
        parameters = {k: v for k, v in self.get_params(deep=False).items() if k not in ("progress", "random_state")}
        return fingerprint(parameters, names, target, None if self.random_state is None else seed)

    def _training_dtype(
        self, environments: Environments, stream: Stream | None, options: Sequence[Weights], settings: Settings
    ) -> str:
        """That of the most demanding option, where it is for us to choose."""
        if self.dtype != "auto":
            return self.dtype
        _, tasks, target, _ = environments
        counts = environments.counts if stream is None else stream.counts(self.alpha)
        searched = [weights for _, _, weights in single_source_weights(counts, target)] if len(options) > 1 else []
        if stream is not None:
            return stream.dtype((*options, *searched), settings)
        scaled = ((weights, scaling_of(tasks, weights, settings)) for weights in (*options, *searched))
        return max(training_dtype(tasks, weights, scaling, settings) for weights, scaling in scaled)

    def _schedule(
        self, settings: Settings, seed: int, journal: Checkpoint | None, batch_size: int | None
    ) -> SearchOptions:
        """How the runs of a search are trained: like those of the fit, for fewer steps."""
        return SearchOptions(
            lambda run: self._train_config(run, search_method(settings.method), batch_size),
            math.ceil(self.n_steps / STEPS_DIVISOR),
            self.learning_rate,
            seed,
            None if self.search_time is None else time.monotonic() + self.search_time,
            lambda description, n_steps: progress_bar(description, n_steps, self.progress),
            journal,
        )

    def _auto(self) -> AutoSettings:
        return AutoSettings(
            *(isinstance(v, str) and v == "auto" for v in (self.alpha, self.temperature, self.prior_std))
        )

    def transfer_report(self) -> TransferReport:
        """Does the source help, by how much, how sure? `print` it for a table, call its `plot` for a picture."""
        check_is_fitted(self, "model_")
        return self.report_

    @property
    def alpha_path_(self) -> Bunch:
        """What was compared: arrays `alpha`, `score`, `standard_error` and `weight` in the average, one entry each."""
        check_is_fitted(self, "model_")
        r = self.report_
        return Bunch(alpha=r.alpha, score=r.score, standard_error=r.standard_error, weight=r.weight)

    @property
    def particles_(self) -> Any:
        """The learned parameters, a pytree with a leading axis of particles; of all members, one after another."""
        check_is_fitted(self, "model_")
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(m.particles for m in self.model_.members))

    @property
    def particle_weights_(self) -> np.ndarray:
        """Their weights in predictions."""
        check_is_fitted(self, "model_")
        return self.model_.particle_weights

    def particle_interaction(self) -> Interaction:
        """Whether the particles of the prior with the most weight interact, or are independent; `print` it."""
        check_is_fitted(self, "model_")
        member = self.model_.members[int(np.argmax(self.model_.weights))]
        return interaction(member.particles, resolve_inference(self.parameters_["inference"]) or MAP())

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted prior to one file, read again by `metaprior.load`."""
        check_is_fitted(self, "model_")
        header = {
            "kind": type(self).__name__,
            "parameters": {n: persistence.encode(v) for n, v in self.parameters_.items() if n != "n_devices"},
            "fitted": {name: getattr(self, name) for name in FITTED_NUMBERS} | self._labels_to_json(),
            "input_dim": self.model_.input_dim,
            "n_members": len(self.model_.members),
            "report": self.report_.to_json(),
            "training": self.training_,
        }
        traces = {name: getattr(self, name) for name in FITTED_TRACES}
        write_tensors(path, header, {**persistence.flatten(self.model_), **traces})

    def _restore(self, path: str | os.PathLike, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        """Take up what `save` wrote."""
        input_dim = header["input_dim"]
        known = self._families(self._fitted_settings(), input_dim)
        family = header["fitted"].setdefault("family_", next(iter(known)))
        if family not in known:
            raise InvalidFile(f"{path} is damaged: there is no kernel {family!r} for it.")
        settings = known[family]
        if isinstance(settings.method, Laplace):  # what is saved are its draws
            settings = replace(settings, method=MAP(), n_particles=settings.method.n_draws)
        with jax.enable_x64(header["fitted"]["dtype_"] == "float64"):
            dtype = jnp.zeros(()).dtype
            template = eqx.filter_eval_shape(draw, jax.random.key(0), input_dim, settings, 1.0, dtype)
            member = Model(template[0], template[1], empty_scaling(input_dim, settings))
            n_members = header["n_members"]
            self.model_ = persistence.restore(path, Ensemble((member,) * n_members, np.zeros(n_members)), tensors)
        try:
            self.report_ = TransferReport.from_json(header["report"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidFile(f"{path} is damaged: its report cannot be read ({error!r}).") from None
        self.parameters_ = self.get_params(deep=False)
        for name in FITTED_NUMBERS:
            setattr(self, name, header["fitted"][name])
        for name in FITTED_TRACES:
            setattr(self, name, tensors[name])
        self.n_features_in_ = input_dim
        self.training_ = header["training"]

    def _families(self, settings: Settings, input_dim: int, streamed: bool = False) -> dict[str, Settings]:
        """The settings for every kernel there is to choose from, by name."""
        method, labels = resolve_inference(self.inference), self.likelihood == "bernoulli"
        method = streamed_method(method) if streamed else method
        kernels = families(settings.kernel, input_dim, settings.encoder, labels)
        if isinstance(method, Laplace):  # networks have too many parameters for it
            kernels = dict(list(kernels.items())[:1])
        return {
            name: resolve(replace(settings, kernel=kernel), input_dim, method, self.n_particles)
            for name, kernel in kernels.items()
        }

    def _fitted_settings(self) -> Settings:
        return self._settings()

    def _labels_to_json(self) -> dict[str, Any]:
        return {}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _settings(self) -> Settings:
        """Check every argument; nothing of the data is needed for that."""
        if self.n_particles is not None:
            check_integer("n_particles", self.n_particles, least=1)
        if isinstance(resolve_inference(self.inference), Laplace) and self.likelihood == "bernoulli":
            raise ValueError("inference='laplace' is for regression; take 'map' or 'svgd' for labels.")
        check_integer("n_steps", self.n_steps, least=0)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, least=1)
        if self.n_devices is not None:
            check_devices(check_integer("n_devices", self.n_devices, least=1))
        check_positive("learning_rate", self.learning_rate)
        auto = self._auto()
        if not (auto.temperature or (isinstance(self.temperature, str) and self.temperature in TEMPERATURES)):
            check_positive("temperature", self.temperature, f", or one of {', '.join((*TEMPERATURES, 'auto'))}")
        if self.search_time is not None:
            check_positive("search_time", self.search_time, " of seconds, or None")
        check_choice("optimizer", self.optimizer, OPTIMISERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("dtype", self.dtype, ("auto", "float32", "float64"))
        self._check_standardize()
        if self.progress is not None:
            check_bool("progress", self.progress)
        return Settings(
            mean=resolve_mean(self.mean),
            kernel=resolve_kernel(self.kernel),
            encoder=resolve_encoder(self.encoder),
            likelihood=self.likelihood,
            noise_std=check_noise(self.noise_std) if self.likelihood == "gaussian" else 1.0,  # type: ignore[attr-defined]
            temperature="bayes" if auto.temperature else self.temperature,
            prior_mean=check_prior_mean(self.prior_mean),
            prior_std=check_prior_std(1.0 if auto.prior_std else self.prior_std),
            standardize=self.standardize,
        )

    def _check_standardize(self) -> None:
        check_bool("standardize", self.standardize)

    def _train_config(self, run: Run, method: Method, batch_size: int | None) -> TrainConfig:
        tasks = run.problem.tasks
        size = sum(tasks.environment_counts) if batch_size is None else int(batch_size)
        plan = None if size >= sum(tasks.environment_counts) else batch_plan(tasks, size)
        return TrainConfig(method, self.optimizer, self.schedule, plan, self.n_devices)
