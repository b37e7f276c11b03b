"""`metaprior fit`."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from metaprior.checks import Argument, Message
from metaprior.cli.console import report_errors
from metaprior.cli.fitting import (
    FitOptions,
    alpha_of,
    check_kind,
    fit_table,
    number_or_word,
    parameters_of,
    takes_fit_options,
)
from metaprior.cli.options import Covariates
from metaprior.cli.training_data import TrainingData

FOR_MEMORY = Message("Use ", Argument("fewer tasks"), ".")


@takes_fit_options
def fit(
    asked: FitOptions,
    *,
    command: typer.Context,
    covariates: Covariates = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Calibrate class probabilities on held-out tasks.")
    ] = True,
    alpha: Annotated[str, typer.Option(help="Weight of the other environments: auto, pooled, or 0 to 1.")] = "auto",
    noise: Annotated[str, typer.Option(help="Noise standard deviation in the units of y, or learned.")] = "learned",
    likelihood: Annotated[
        str,
        typer.Option(help="gaussian, student-t (outliers), poisson or negative-binomial (counts), ordinal (ranks)."),
    ] = "gaussian",
    exposure: Annotated[
        str | None, typer.Option(help="Column with the exposure of counts, such as days of observation.")
    ] = None,
    conformal: Annotated[
        bool,
        typer.Option(
            "--conformal", help="Repeat the fit without held-out tasks, for conformal intervals: predict --conformal."
        ),
    ] = False,
):
    """Learn a prior from the tasks of a table and save it.

    It takes seconds. With --hold-out the prior is also tested, on tasks that it is not fitted to.
    """
    with report_errors(asked.as_json, FOR_MEMORY):
        if asked.private and conformal:
            stored = "fits without each target task, or each few, from which their averages can be told"
            raise ValueError(f"--private cannot hide what --conformal needs: {stored}. Leave out one of the two.")
        of_both = {**alpha_of(asked, alpha), "search_time": asked.search_time}
        noise_std = number_or_word("--noise", noise)

        def make(tasks: TrainingData) -> Any:
            from metaprior import MetaGPClassifier, MetaGPRegressor

            for_numbers = {
                "--noise": noise != "learned",
                "--likelihood": likelihood != "gaussian",
                "--exposure": exposure is not None,
                "--conformal": conformal,
            }
            check_kind(tasks, for_numbers, {"--no-calibrate": not calibrate})
            shared = {**of_both, **parameters_of(asked, tasks)}
            if tasks.labels:
                return MetaGPClassifier(**shared, calibrate=calibrate)
            place = None if exposure is None else _place_of(exposure, tasks.columns["x"])
            own = {"noise_std": noise_std, "likelihood": likelihood, "exposure": place, "conformal": conformal}
            return MetaGPRegressor(**shared, **own)

        fit_table(asked, command, make, covariates, exposure)


def _place_of(exposure: str, x: Sequence[str]) -> int:
    """Return the number of the input column with the exposure, which only stored tasks may lack."""
    if exposure not in x:
        known = ", ".join(map(repr, x))
        found = f"--exposure names {exposure!r}, which is no input of the stored tasks: {known}"
        raise ValueError(f"{found}. Store the tables again, with this column in --x.")
    return list(x).index(exposure)
