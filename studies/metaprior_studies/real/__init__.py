"""`metaprior bench-data`: all schemes on real data."""
