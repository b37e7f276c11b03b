"""What users pass to the constructor and to `fit`, checked. What a way to fit makes of it is its own matter."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import (
    Argument,
    Message,
    check_bool,
    check_choice,
    check_integer,
    check_noise,
    check_positive,
    counted,
    is_number,
    warn_caller,
)
from metaprior.meta.hyperprior_arguments import check_prior_mean, check_prior_std
from metaprior.search.candidates import AutoSettings
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.context_rules import as_context_rule
from metaprior.tasks.input_columns import Features
from metaprior.tasks.outcome_rules import COUNTS, LIKELIHOODS
from metaprior.tasks.spelling import check_spelling
from metaprior.tasks.types import Task

# Names that the modules of gradient-based training know, which take long to import.
TEMPERATURES = ("paper", "effective", "bayes")
OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "cosine")
# What y holds, by the likelihood.
OUTPUTS = {name: "counts" if name in COUNTS else "readings" for name in LIKELIHOODS}
OUTPUTS |= {"ordinal": "ranks", "bernoulli": "labels"}
RENAMED = {"standardise": "standardize"}
Read = Callable[[Any, str, Features], list[Task]]  # checks tasks, given their name in errors and what X must have

# Parameters of gradient-based training: a value that means something else than the default asks for it.
ASK_FOR_GRADIENTS = (
    *("inference", "n_particles", "mean", "kernel", "encoder", "temperature", "prior_mean", "prior_std"),
    *("optimizer", "learning_rate", "schedule", "n_steps", "batch_size", "standardize"),
)
# Parameters that only say how it computes, with the values at which the default computes so too.
HOW_TO_COMPUTE: dict[str, tuple[Any, ...]] = {"dtype": ("auto", "float64"), "n_devices": (None, 1)}
GRADIENT_ONLY = (*ASK_FOR_GRADIENTS, *HOW_TO_COMPUTE)


class NamedEnvironments(NamedTuple):
    """Checked tasks of every environment."""

    names: tuple[str, ...]
    tasks: list[Sequence[Task]]  # lists, or stored tasks
    target: int  # index of the target environment
    arguments: tuple[str, ...]  # the name of each in errors
    kinds: ColumnKinds | None = None  # what the input columns are; None: numbers
    columns: tuple[str, ...] = ()  # what messages call them

    @property
    def counts(self) -> list[int]:
        """The number of tasks of each environment."""
        return [len(tasks) for tasks in self.tasks]

    @property
    def input_dim(self) -> int:
        """The number of input columns."""
        return next(task.x.shape[1] for tasks in self.tasks for task in tasks[:1])

    @property
    def width(self) -> int:
        """The number of columns of scaled inputs."""
        return self.input_dim if self.kinds is None else sum(self.kinds.widths)


def reject_renamed_parameters(given: Mapping[str, Any]) -> None:
    """Raise for the former name of a parameter, naming the new one."""
    for name in RENAMED.keys() & given.keys():
        raise TypeError(f"{name} has been renamed: pass {RENAMED[name]}={given[name]!r}.")


def reject_renamed(init: Callable[..., None]) -> Callable[..., None]:
    """Make a constructor raise for the former name of a parameter."""

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        reject_renamed_parameters(kwargs)
        init(self, *args, **kwargs)

    return checked


def check_parameters(meta: Any) -> None:
    """Check every parameter that can be checked without data, except for parts of the prior and its inference."""
    for name, least in (("n_particles", 1), ("n_steps", 0), ("batch_size", 1), ("n_devices", 1)):
        if getattr(meta, name) is not None:
            check_integer(name, getattr(meta, name), least=least)
    check_positive("learning_rate", meta.learning_rate)
    auto = auto_settings(meta)
    if not (auto.temperature or (isinstance(meta.temperature, str) and meta.temperature in TEMPERATURES)):
        check_positive("temperature", meta.temperature, f", or one of {', '.join((*TEMPERATURES, 'auto'))}")
    if meta.search_time is not None:
        check_positive("search_time", meta.search_time, " of seconds, or None", limits=None)
    as_context_rule(meta.context)
    check_choice("optimizer", meta.optimizer, OPTIMIZERS)
    check_choice("schedule", meta.schedule, SCHEDULES)
    check_choice("dtype", meta.dtype, ("auto", "float32", "float64"))
    meta._check_standardize()
    if meta.progress is not None:
        check_bool("progress", meta.progress)
    if hasattr(meta, "noise_std"):
        _check_likelihood(meta)
        check_bool("guarantee", meta.guarantee)
    else:
        check_bool("calibrate", meta.calibrate)
        if not (isinstance(meta.shared_classes, str) and meta.shared_classes == "auto"):
            check_bool("shared_classes", meta.shared_classes, "'auto', ")
    check_prior_mean(meta.prior_mean)
    check_prior_std(1.0 if auto.prior_std else meta.prior_std)


def _check_likelihood(meta: Any) -> None:
    """Check the likelihood of a regressor, and what goes with it."""
    given = Argument("likelihood", meta.likelihood)
    check_choice("likelihood", meta.likelihood, LIKELIHOODS)
    if check_noise(meta.noise_std) is not None and meta.likelihood != "gaussian":
        why = " is learned" if meta.likelihood == "student-t" else " has no noise"
        raise ValueError(Message(Argument("noise_std"), f" must be 'learned': that of {given}{why}."))
    if meta.exposure is not None and meta.likelihood not in COUNTS:
        counts = " or ".join(str(Argument("likelihood", name)) for name in COUNTS)
        raise ValueError(Message(Argument("exposure"), f" is for counts, {counts}; got {given}."))


def check_context_size(context: Any, environments: NamedEnvironments) -> None:
    """Raise if a context of the given size leaves no reading of any held-out task to predict; warn if of some only."""
    rule, tasks = as_context_rule(context), environments.tasks[environments.target]
    if rule.size is None:
        return
    of_target = len(tasks) > 1  # those of a source are held out if there are fewer
    held_out = [tasks] if of_target else [each for each in environments.tasks if len(each)]
    sizes = np.concatenate([_sizes(each) for each in held_out])
    n_short, given = int(np.sum(sizes <= rule.size)), counted(rule.size, "reading")
    which = f"tasks of the {environments.names[environments.target]} environment" if of_target else "tasks"
    if n_short == len(sizes):
        found = f" must leave a reading of a task to predict: it gives {given}, and the longest of the {len(sizes):,} "
        raise ValueError(Message(Argument("context"), f"{found}{which} has {int(sizes.max())}. Pass a smaller one."))
    if n_short:
        found = f"{n_short:,} of {len(sizes):,} {which} have no more than the {given} that "
        instead = " gives: in cross-validation all of theirs but one are given. Leave them out, or pass a smaller one."
        warn_caller(Message(found, Argument("context"), instead))


def _sizes(tasks: Sequence[Task]) -> np.ndarray:
    """Return the numbers of readings of tasks, without reading stored ones."""
    return tasks.sizes if isinstance(tasks, StoredTasks) else np.array([len(task.y) for task in tasks])


def choose_engine(meta: Any, tests: Any) -> str:
    """Return the engine that fits an estimator: the default, or gradient training if an argument asks for it.

    Raise if the engine cannot compute as it is asked to, or if the likelihood is the default's alone: the paper, whose
    method is trained by gradients, has only Gaussian readings and labels.
    """
    defaults = type(meta)()
    asked = [name for name in ASK_FOR_GRADIENTS if not _means_the_default(meta, defaults, name)]
    asked += ["validation_tasks"] * (tests is not None)
    how = [name for name, able in HOW_TO_COMPUTE.items() if getattr(meta, name) not in able]
    if (asked or how) and meta.likelihood not in ("gaussian", "bernoulli"):
        listed = [part for name in (*asked, *how) for part in (", ", _as_given(meta, name))][1:]
        works = " works with the default only, which is not trained by gradients: leave out "
        raise ValueError(Message(Argument("likelihood", meta.likelihood), works, *listed, "."))
    if how and not asked:
        default = " is for gradient training, and nothing asks for that: hierarchical priors, the default, compute "
        advice = "in float64 on one device. Leave it out, or pass ", Argument("kernel", "inducing")
        raise ValueError(Message(_as_given(meta, how[0]), default, *advice, " for a prior trained by gradients."))
    return "gradient" if asked else "hierarchical"


def _as_given(meta: Any, name: str) -> Argument:
    """Return an argument with its value, if that can be written."""
    value = getattr(meta, name, None)
    return Argument(name, value if isinstance(value, str | int | float) else None)


def _means_the_default(meta: Any, defaults: Any, name: str) -> bool:
    """Return whether a checked value says the same as the default, in whatever type."""
    value, default = getattr(meta, name), getattr(defaults, name)
    if name == "n_particles":
        return value in (None, 1)  # one particle is a point, as theta of the default
    if name == "prior_mean":
        return check_prior_mean(value) == check_prior_mean(default)
    if name == "prior_std" and not isinstance(value, str):
        return check_prior_std(value) == check_prior_std(default)
    plain = (str, int, float, np.generic, type(None))  # arrays and modules are never the default, and may not compare
    return isinstance(value, plain) and bool(value == default)


def auto_settings(meta: Any) -> AutoSettings:
    """Return which parameters of an estimator are to be chosen by cross-validation."""
    values = (meta.alpha, meta.temperature, meta.prior_std)
    return AutoSettings(*(isinstance(value, str) and value == "auto" for value in values))


def read_environments(
    source_tasks: Iterable[Any] | Mapping[Any, Any] | None,
    target_tasks: Iterable[Any] | None,
    target: Any,
    read: Read,
    features: Features,
) -> NamedEnvironments:
    """Check source and target tasks, or a mapping from names to tasks that `target` names one of."""
    for name, given in (("source_tasks", source_tasks), ("target_tasks", target_tasks)):
        _check_not_one_data_set(name, given)
    if isinstance(source_tasks, Mapping):
        _check_names(source_tasks, target_tasks, target)
        names = tuple(source_tasks)
        named = [(f"source_tasks[{name!r}]", tasks) for name, tasks in source_tasks.items()]
    elif target is not None:
        raise ValueError(
            f"target={target!r} names one of several environments, as in fit({{'a': tasks, 'b': tasks}}, target='b'); "
            "leave it out with source_tasks and target_tasks."
        )
    else:
        names = ("source", "target")
        named = [("source_tasks", source_tasks), ("target_tasks", target_tasks)]
    checked: list[Sequence[Task]] = []
    for argument, tasks in named:
        stored = isinstance(tasks, StoredTasks)
        checked.append(_stored(tasks, argument, features) if stored else read(tasks, argument, features))
    if not any(checked):
        empty = "source_tasks has no tasks" if len(names) != 2 or isinstance(source_tasks, Mapping) else ""
        raise ValueError(f"{empty or 'source_tasks and target_tasks are both empty'}: expected at least one (X, y).")
    place = names.index(target if isinstance(source_tasks, Mapping) else "target")
    features.learned()
    arguments = tuple(argument for argument, _ in named)
    columns = tuple(map(features.column_name, range(features.count or 0)))
    return NamedEnvironments(names, checked, place, arguments, features.kinds, columns)


def warn_if_few_target_tasks(environments: NamedEnvironments, auto: AutoSettings, n_steps: Any) -> None:
    """Warn if there are too few target tasks for cross-validation."""
    n_target, name = environments.counts[environments.target], environments.names[environments.target]
    if auto.weights and not n_target:
        found = f"There are no tasks of the {name} environment to choose alpha by, so alpha is 1. Pass some, or "
        warn_caller(
            Message(found, Argument("alpha", 1), " or ", Argument("alpha", "pooled"), " to silence this warning.")
        )
    if (auto.temperature or auto.prior_std) and n_target < 2 and n_steps > 0:
        both = Argument("temperature", "auto"), " and ", Argument("prior_std", "auto")
        few = f"of the {name} environment, one of them to hold out; there are {n_target}. Using 'bayes' and 1.0."
        warn_caller(Message(*both, " need at least two tasks ", few))


def reject_rows(y: Any) -> None:
    """Raise if `score` gets X and y, as those of other estimators do."""
    if y is not None:
        raise TypeError(
            "score takes test tasks, not X and y: score([(X_context, y_context, X_query, y_query), ...]) adapts to the "
            "context of each task and scores its queries."
        )


def _check_not_one_data_set(name: str, given: Any) -> None:
    """Raise for one X or y in place of many tasks, as other estimators take them, and explain the two steps."""
    first = given[0] if isinstance(given, list | tuple) and len(given) else None
    is_row = isinstance(first, list | tuple | np.ndarray) and len(first) > 0 and all(is_number(v) for v in first)
    if hasattr(given, "dtype") or hasattr(given, "columns") or is_number(first) or is_row:
        raise ValueError(
            f"{name} must be a sequence of (X, y), one pair per task; got {type(given).__name__}. There are two "
            "steps: fit([(X1, y1), (X2, y2), ...]) learns a prior from many tasks, then adapt(X_context, "
            "y_context).predict(X_new) predicts a new task from a few readings of it. For the rows of a table, "
            "tasks_from_frame makes the pairs. To fit a single task, pass fit([(X, y)])."
        )


def _stored(tasks: StoredTasks, argument: str, features: Features) -> StoredTasks:
    """Check that stored tasks are as they were written, which was checked then, and go with the others."""
    features.decide(tasks)
    if features.categories.levels:
        raise ValueError(
            Message(
                f"{argument} is stored, and stored tasks hold numbers: ", Argument("categorical"), " is not for them."
            )
        )
    input_dim = features.count
    if input_dim is not None and tasks.input_dim != input_dim:
        raise ValueError(
            f"{argument} must have {counted(input_dim, 'input column')}, like the other tasks; got {tasks.input_dim}."
        )
    tasks.verify()
    features.count, features.n_unnamed = tasks.input_dim, features.n_unnamed + len(tasks)
    return tasks


def _check_names(environments: Mapping[Any, Any], target_tasks: Any, target: Any) -> None:
    if not environments:
        raise ValueError("source_tasks is an empty mapping: expected environment names and their tasks.")
    listed = ", ".join(map(repr, environments))
    if not all(isinstance(name, str) for name in environments):
        raise ValueError(f"source_tasks must map names to tasks; its keys must be strings, got {listed}.")
    if target_tasks is not None:
        raise ValueError(
            "target_tasks must be left out if source_tasks maps names to tasks: name the target by target='...'."
        )
    check_spelling(environments, "environment", "source_tasks: ")
    if target is None:
        one_of = f" must name the environment to predict in; pass one of {listed}."
        raise ValueError(Message(Argument("target"), one_of))
    if not (isinstance(target, str) and target in environments):
        raise ValueError(Message(Argument("target"), f" must be one of the environments, {listed}; got {target!r}."))
