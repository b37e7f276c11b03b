"""`metaprior wfem`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metaprior.cli.console import exit_error, report_errors, with_options
from metaprior.cli.fit import FitOptions, alpha_of, check_kind, fit_table, parameters_of, takes_fit_options
from metaprior.cli.options import MODEL, named_values, option, value_of
from metaprior.cli.training_data import TrainingData
from metaprior.memory import RUN_ADVICE

if TYPE_CHECKING:
    from metaprior.cli.console import Estimator

TRAINING = ("optimizer", "schedule", "standardize", "search_time", "n_devices")  # settings without an option


@takes_fit_options
def wfem(
    asked: FitOptions,
    *,
    command: typer.Context,
    kernel: Annotated[
        Literal["mlp", "linear", "linear+rbf", "rbf"], option("--kernel", "Prior covariance.", MODEL)
    ] = "mlp",
    mean: Annotated[Literal["mlp", "linear", "constant", "zero"], option("--mean", "Prior mean.", MODEL)] = "mlp",
    encoder: Annotated[
        Literal["mlp", "conv"] | None, option("--encoder", "Network from inputs to features (default: none).", MODEL)
    ] = None,
    noise_std: Annotated[
        str, option("--noise-std", "Noise standard deviation in the units of y, or learned.", MODEL)
    ] = "learned",
    inference: Annotated[
        Literal["map", "svgd", "laplace"],
        option("--inference", "Approximation of the Gibbs hyper-posterior.", MODEL),
    ] = "map",
    n_particles: Annotated[
        int | None, option("--n-particles", "Number of particles (default: 1 for map, else 10).", MODEL)
    ] = None,
    alpha: Annotated[
        str | None,
        option("--alpha", "Weight of the other environments: 0 to 1 (default: 0.5), pooled or auto.", MODEL),
    ] = None,
    temperature: Annotated[
        str, option("--temperature", "paper, effective, bayes, auto, or a number.", MODEL)
    ] = "paper",
    std: Annotated[str, option("--std", "Standard deviation of the hyper-prior: a number, or auto.", MODEL)] = "1",
    n_steps: Annotated[
        int | None, option("--n-steps", "Training steps (default: 2000; for labels 1000).", MODEL)
    ] = None,
    learning_rate: Annotated[float, option("--learning-rate", "Learning rate at the start.", MODEL)] = 0.01,
    batch_size: Annotated[
        int | None, option("--batch-size", "Tasks per step (default: all; 256 if stored).", MODEL)
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "float64"],
        option("--dtype", "Precision of training; auto depends on the data.", MODEL),
    ] = "auto",
):
    """Learn a prior of the paper by weighted free energy minimization (WFEM), and save it.

    Its means and kernels are neural networks by default. It takes minutes, and needs
    `pip install "metaprior\\[wfem]"`; for predictions alone use `metaprior fit`. A checkpoint is kept beside --out:
    re-running an interrupted fit resumes it, with the same result.

    Parameters for --set: random_state=1, shared_classes=false, search_time=60, optimizer=sgd, schedule=constant,
    standardize=false, n_devices=2, as of WFEMRegressor, WFEMClassifier and Training.
    """
    with report_errors(asked.as_json, RUN_ADVICE):
        from metaprior.wfem import Gaussian, HyperPrior, Training, TrainingDiverged, WFEMClassifier, WFEMRegressor
        from metaprior.wfem.settings import METHODS

        given = named_values("--set", asked.set, ("random_state", "shared_classes", *TRAINING))
        settings: dict[str, Any] = {"random_state": 0, **{name: value_of(value) for name, value in given.items()}}
        training = {name: settings.pop(name) for name in TRAINING if name in settings}
        settings |= {
            **{"kernel": kernel, "mean": mean, "encoder": encoder, **alpha_of(asked, alpha)},
            "inference": METHODS[inference]() if n_particles is None else METHODS[inference](n_particles),
            "temperature": value_of(temperature),
            "hyperprior": HyperPrior(std=value_of(std)),
            "training": Training(n_steps, learning_rate, batch_size=batch_size, dtype=dtype, **training),
        }
        likelihood = Gaussian(noise_std=value_of(noise_std))

        def make(tasks: TrainingData) -> "Estimator":
            if tasks.labels:
                check_kind(tasks, ["--noise-std"] if noise_std != "learned" else [])
                return WFEMClassifier(**settings, **parameters_of(asked, tasks))
            check_kind(tasks, ["--set shared_classes"] if "shared_classes" in settings else [])
            return WFEMRegressor(**settings, **parameters_of(asked, tasks), likelihood=likelihood)

        try:
            fit_table(asked, command, make, settings["random_state"], resumes=True)
        except TrainingDiverged as error:
            raise exit_error(with_options(error), 1, asked.as_json) from None
