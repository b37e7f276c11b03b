"""`python -m metaprior` is the command `metaprior`."""

from metaprior.cli import app

if __name__ == "__main__":
    app(prog_name="metaprior")
