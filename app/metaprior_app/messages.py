"""What the page says: errors of requests, and messages of the library without the words of Python."""

from typing import Any

from metaprior.checks import Argument, Message
from metaprior.files import as_struct
from metaprior.likelihoods import LIKELIHOODS

CHANGED = 409  # HTTP: the request does not fit the state any more

LIKELIHOOD_WORDS = {
    name: f"“{kind.form_words}” under “Noise of the output”" for name, kind in LIKELIHOODS.items() if kind.form_words
}
# What the page calls arguments that messages name.
PAGE_WORDS = {
    "drop_missing": "“leave out rows with missing cells”",
    "drop_duplicates": "“leave out repeated rows”",
    "extrapolates(X)": "The shaded part of the chart",
    "task": "the task column",
    "x": "the inputs",
    "y": "the output",
    "environment": "the environment column",
    "coverage": "the coverage",
    "shared_classes=False": "labels of each task’s own",
    "write them in other words": "choose “labels” under “The output holds”",
    **{str(Argument("likelihood", name)): words for name, words in LIKELIHOOD_WORDS.items()},
    "use MetaGPRegressor": "choose “numbers” under “The output holds”",
    **{
        f"pandas.read_csv and {name}": f"the file’s {word} set to"
        for name, word in (("sep", "separator"), ("decimal", "decimal mark"), ("encoding", "encoding"))
    },
}


# The same where a message comes from `metaprior fit`, which the page runs.
OPTION_WORDS = (
    ("pass --drop-missing", "tick “leave out rows with missing cells”"),
    ("pass --drop-duplicates", "tick “leave out repeated rows”"),
    ("pass --kind classification", "choose “labels” under “The output holds”"),
    ("pass --kind regression", "choose “numbers” under “The output holds”"),
    *((f"--likelihood {name}", words) for name, words in LIKELIHOOD_WORDS.items()),
    ("--task-covariates", "facts about the task"),
    ("--exposure", "the exposure"),
    ("read it with --sep", "set the separator under Options to"),
    ("read it with --decimal", "set the decimal mark under Options to"),
    ("read it with --encoding", "set the encoding under Options to"),
    *((f"--{name}", words) for name, words in (("task", "task"), ("environment", "environment"), ("target", "target"))),
)


class InvalidRequest(ValueError):
    """Raised for a request that the page would not send, or that no longer fits what the server has."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def check(schema: type, request: dict[str, Any]) -> None:
    """Raise an InvalidRequest that names what does not fit a struct of msgspec."""
    try:
        as_struct(request, schema, "request")
    except ValueError as error:
        raise InvalidRequest(f"{error}.") from None


def spoken(error: Any) -> str:
    """Return the message of an error or warning in words of the page."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    message = error.args[0] if getattr(error, "args", None) else str(error)
    words = message.spell(_on_page) if isinstance(message, Message) else str(message)
    return words.replace("explain: in adapt, at X = ", "explain: at ")


def from_command(message: str, path: str, name: str) -> str:
    """Return a message of `metaprior fit` in words of the page, which calls the table by its name."""
    message = message.replace(path, name)
    for option, words in OPTION_WORDS:
        message = message.replace(option, words)
    return message


def _on_page(argument: Argument) -> str:
    if str(argument) in PAGE_WORDS:
        return PAGE_WORDS[str(argument)]
    word = PAGE_WORDS.get(argument.name)
    if word is None:
        return str(argument)
    plain = argument.value is None or argument.value is True
    return word if plain else f"{word} {'tab' if argument.value == chr(9) else argument.value}"
