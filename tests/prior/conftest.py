import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Threads only get in each other's way with such small matrices, a hundredfold on a busy machine."""
    with threadpool_limits(1, user_api="blas"):
        yield
