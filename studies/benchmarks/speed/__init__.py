"""How fast metaprior is, against others and against the arithmetic: `make bench`."""
