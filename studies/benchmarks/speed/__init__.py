"""Speed of metaprior against other libraries and the arithmetic minimum: `make bench`."""
