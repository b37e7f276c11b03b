"""The commands `metaprior demo`, `metaprior reproduce` and `metaprior bench-data`."""

import typer

from metaprior_studies.commands.bench_data import bench_data
from metaprior_studies.commands.demo import demo
from metaprior_studies.commands.reproduce import reproduce

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for command in (demo, reproduce, bench_data):
    app.command()(command)
