"""`metaprior reproduce`: the paper's figures, claims and report."""
