"""`metaprior demo`: every scheme on one problem, as a table and a picture."""
