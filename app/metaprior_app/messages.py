"""What the page says of errors, in words of the library: its fields bear the names of parameters."""

import re

CHANGED = 409  # HTTP: the request does not fit the state any more


class InvalidRequest(ValueError):
    """Raised for a request that the page would not send, or that no longer fits what the server has."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def spoken(error: BaseException | Warning | str) -> str:
    """Return the message of an error or a warning. Options of the command line become names of parameters."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    message = str(error) or type(error).__name__
    return re.sub(r"--([a-z][a-z-]*)", lambda option: option[1].replace("-", "_"), message)
