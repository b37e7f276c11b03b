"""Data to try metaprior on: the sinusoid of the paper, and the tables of `metaprior example`."""

from metaprior.datasets.sinusoid import Sinusoid

__all__ = ["Sinusoid"]
