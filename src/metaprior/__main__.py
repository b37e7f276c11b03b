"""`python -m metaprior` is the command `metaprior`."""

from metaprior.cli import app

app(prog_name="metaprior")
