"""Studies built on metaprior: the paper's figures, demos and real data. Not part of the metaprior package."""
