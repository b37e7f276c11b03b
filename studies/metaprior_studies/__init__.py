"""Studies built on metaprior: the figures of the paper, demos, real data and benchmarks. Not part of the package."""
