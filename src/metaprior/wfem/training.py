"""How a prior is trained: settings that users group in one argument."""

from dataclasses import dataclass, replace

from metaprior.checks import check_bool, check_choice, check_integer, check_positive
from metaprior.wfem.steps import OPTIMIZERS, SCHEDULES

WITHIN_CLASS = "within-class"


@dataclass(frozen=True)
class Training:
    """How a prior is trained.

    Parameters
    ----------
    n_steps : int, optional
        Steps of the optimizer, 2000 by default, and 1000 for labels. 0 leaves the prior at its initial parameters: the
        paper's "GP".
    learning_rate : float
        Learning rate at the start.
    optimizer : "adam" or "sgd"
    schedule : "cosine" or "constant"
        Learning-rate schedule.
    batch_size : int, optional
        Tasks per step, split evenly among the environments. By default all tasks, and 256 for stored tasks.
    standardize : bool or "within-class", optional
        Whether inputs and outputs are standardized by the tasks of the fit; predictions are in the units of y. "within-
        class", the default for labels, divides inputs by their standard deviation within the classes of a task, and
        decorrelates them.
    dtype : "auto", "float32" or "float64"
        Precision. "auto" is float64 if the noise is small against the spread of y or tasks are large. Adaptation and
        prediction are in float64.
    n_devices : int, optional
        Devices that share the training, by default all that JAX sees.
    search_time : float, optional
        Seconds that cross-validation may take, if it chooses anything; by default unlimited. Runs are shortened, and in
        less than 10 seconds, which compiling takes, nothing is compared.
    progress : bool, optional
        Show a progress bar, by default if standard error is a terminal.
    """

    n_steps: int | None = None
    learning_rate: float = 1e-2
    optimizer: str = "adam"
    schedule: str = "cosine"
    batch_size: int | None = None
    standardize: bool | str | None = None
    dtype: str = "auto"
    n_devices: int | None = None
    search_time: float | None = None
    progress: bool | None = None

    def __post_init__(self):
        for name, least in (("n_steps", 0), ("batch_size", 1), ("n_devices", 1)):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least=least)
        check_positive("learning_rate", self.learning_rate)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        is_rule = isinstance(self.standardize, str) and self.standardize == WITHIN_CLASS
        if self.standardize is not None and not is_rule:
            check_bool("standardize", self.standardize, f"{WITHIN_CLASS!r}, ")
        check_choice("dtype", self.dtype, ("auto", "float32", "float64"))
        if self.search_time is not None:
            check_positive("search_time", self.search_time, " of seconds, or None", limits=None)
        if self.progress is not None:
            check_bool("progress", self.progress)

    def portable(self) -> "Training":
        """Return the settings that a file holds: not those of one machine."""
        return replace(self, n_devices=None, progress=None)
