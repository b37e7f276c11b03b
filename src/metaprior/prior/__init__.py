"""Hierarchical Gaussian-process priors of few parameters, whose common mean is integrated out. NumPy only."""
