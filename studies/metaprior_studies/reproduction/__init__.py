"""The figures of the paper: experiments, claims and report."""
