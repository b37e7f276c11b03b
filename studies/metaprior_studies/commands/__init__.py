"""The commands `metaprior demo`, `metaprior reproduce` and `metaprior bench-data`."""
