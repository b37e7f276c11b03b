from contextlib import closing
from functools import cache

import pytest
from threadpoolctl import threadpool_limits

from page_client import Page, ServedPage, make_prior


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Threads only get in each other's way with such small matrices."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="session")
def prior_file(tmp_path_factory):
    """Return a function of the kind of a prior: its file, fitted once."""
    folder = tmp_path_factory.mktemp("priors")
    return cache(lambda kind: make_prior(folder, kind))


@pytest.fixture
def page(tmp_path):
    """A page without a table."""
    (tmp_path / "page").mkdir()
    with closing(Page(tmp_path / "page")) as opened:
        yield opened


@pytest.fixture
def served(tmp_path):
    """The same at a port of this machine."""
    (tmp_path / "served").mkdir()
    with closing(ServedPage(tmp_path / "served")) as opened:
        yield opened


@pytest.fixture
def predicting(page, prior_file):
    """Return a function of the kind of a prior: the page, with that prior open."""

    def open_prior(kind="numbers"):
        page.open_prior(prior_file(kind))
        return page

    return open_prior
