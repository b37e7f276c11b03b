"""`metaprior demo`: all schemes on one problem, as a table and a figure."""
