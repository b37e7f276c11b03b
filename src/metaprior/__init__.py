"""metaprior: Gaussian-process priors learned from many small tasks."""

__version__ = "0.1.0"
