"""The run-time type checker of the tests."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as for every static checker
