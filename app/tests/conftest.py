from functools import cache

import pytest
from page_client import make_prior, serving
from threadpoolctl import threadpool_limits


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
    folder = tmp_path / "page"
    folder.mkdir()
    with serving(folder) as served:
        yield served


@pytest.fixture
def predicting(page, prior_file):
    """Return a function of the kind of a prior: the page, with that prior open."""

    def open_prior(kind="numbers"):
        page.open_prior(prior_file(kind))
        return page

    return open_prior


SERVERS = {"page", "fitted", "served", "served_prior"}  # fixtures


@pytest.fixture(autouse=True)
def _quiet_server(request):
    """No request makes the server print a traceback: it would be one that it did not expect."""
    if not SERVERS & set(request.fixturenames):
        yield
        return
    printed = request.getfixturevalue("capfd")
    yield
    if not request.node.get_closest_marker("xfail"):
        assert "Traceback" not in printed.readouterr().err
