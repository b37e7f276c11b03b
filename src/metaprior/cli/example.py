"""`metaprior example`."""

import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from metaprior.cli.console import out, report_errors
from metaprior.cli.outputs import write

TABLES = ("patients.csv", "test.csv", "readings.csv", "hours.csv")


def example(folder: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path("example")):
    """Write small tables to try the other commands on: simulated heart rates after surgery in two hospitals."""
    source = resources.files("metaprior").joinpath("datasets", "example")
    with report_errors():
        for name in TABLES:
            write(folder / name, source.joinpath(name).read_bytes())
    place = lambda name: shlex.quote(str(folder / name))  # noqa: E731
    out.print(
        f"Wrote {', '.join(TABLES)} to {folder}. To learn a prior, evaluate it and predict with it:\n"
        f"  metaprior fit {place('patients.csv')} --task patient --x hours --y heart_rate "
        f"--environment hospital --target south --out {place('prior.safetensors')}\n"
        f"  metaprior evaluate {place('prior.safetensors')} {place('test.csv')}\n"
        f"  metaprior predict {place('prior.safetensors')} {place('readings.csv')} {place('hours.csv')} "
        f"--out {place('predictions.csv')} --plot {place('predictions.png')}",
        soft_wrap=True,
    )
