"""Choosing the weights of environments and the prior by cross-validation over target tasks, and reporting it."""
