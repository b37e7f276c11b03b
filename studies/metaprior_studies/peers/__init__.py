"""metaprior compared with other ways to predict new groups from few readings: `studies/benchmarks/peers.py`."""
