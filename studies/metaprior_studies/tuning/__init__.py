"""Tuning hyper-parameters: tabulated scores, and optimizers that are compared on them."""
