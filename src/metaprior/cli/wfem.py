"""`metaprior wfem`."""

from typing import Annotated, Any, Literal

import typer

from metaprior.cli.console import exit_error, report_errors, with_options
from metaprior.cli.fitting import (
    FitOptions,
    alpha_of,
    check_kind,
    fit_table,
    number_or_word,
    parameters_of,
    takes_fit_options,
)
from metaprior.cli.training_data import TrainingData
from metaprior.memory import RUN_ADVICE


@takes_fit_options
def wfem(
    asked: FitOptions,
    *,
    command: typer.Context,
    kernel: Annotated[Literal["mlp", "linear", "linear+rbf", "rbf"], typer.Option(help="Prior covariance.")] = "mlp",
    mean: Annotated[Literal["mlp", "linear", "constant", "zero"], typer.Option(help="Prior mean.")] = "mlp",
    encoder: Annotated[
        Literal["mlp", "conv"] | None, typer.Option(help="Network from inputs to features (default: none).")
    ] = None,
    noise: Annotated[str, typer.Option(help="Noise standard deviation in the units of y, or learned.")] = "learned",
    inference: Annotated[
        Literal["map", "svgd", "laplace"], typer.Option(help="Approximation of the Gibbs hyper-posterior.")
    ] = "map",
    particles: Annotated[int | None, typer.Option(help="Number of particles (default: 1 for map, else 10).")] = None,
    alpha: Annotated[
        str | None, typer.Option(help="Weight of the other environments: 0 to 1 (default: 0.5), pooled or auto.")
    ] = None,
    temperature: Annotated[str, typer.Option(help="paper, effective, bayes, auto, or a number.")] = "paper",
    prior_std: Annotated[str, typer.Option(help="Scale of the hyper-prior: a number, or auto.")] = "1",
    steps: Annotated[int | None, typer.Option(help="Training steps (default: 2000; for labels 1000).")] = None,
    learning_rate: Annotated[float, typer.Option(help="Learning rate at the start.")] = 0.01,
    batch_size: Annotated[int | None, typer.Option(help="Tasks per step (default: all; 256 if stored).")] = None,
    dtype: Annotated[
        Literal["auto", "float32", "float64"], typer.Option(help="Precision of training; auto depends on the data.")
    ] = "auto",
):
    """Learn a prior of the paper by weighted free energy minimization (WFEM), and save it.

    Its means and kernels are neural networks by default. It takes minutes, and the extra of
    `pip install "metaprior[wfem]"`; for predictions alone use `metaprior fit`. A checkpoint is kept beside --out:
    re-running an interrupted fit resumes it, with the same result.
    """
    with report_errors(asked.as_json, RUN_ADVICE):
        from metaprior.wfem import Gaussian, HyperPrior, Training, TrainingDiverged, WFEMClassifier, WFEMRegressor
        from metaprior.wfem.settings import METHODS

        settings = {
            **{"kernel": kernel, "mean": mean, "encoder": encoder, **alpha_of(asked, alpha)},
            "inference": METHODS[inference]() if particles is None else METHODS[inference](particles),
            "temperature": number_or_word("--temperature", temperature),
            "hyperprior": HyperPrior(std=number_or_word("--prior-std", prior_std)),
            "training": Training(
                steps, learning_rate, batch_size=batch_size, dtype=dtype, search_time=asked.search_time
            ),
        }
        likelihood = Gaussian(noise_std=number_or_word("--noise", noise))

        def make(tasks: TrainingData) -> Any:
            check_kind(tasks, for_numbers={"--noise": noise != "learned"})
            shared = {**settings, **parameters_of(asked, tasks)}
            return WFEMClassifier(**shared) if tasks.labels else WFEMRegressor(**shared, likelihood=likelihood)

        try:
            fit_table(asked, command, make, resumes=True)
        except TrainingDiverged as error:
            raise exit_error(with_options(error), 1, asked.as_json) from None
