"""What a study is to the runner: a frozen configuration, points, and the rows of each."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from metaprior_studies.schema import COLUMNS

Rows = list[dict[str, Any]]


class Point(NamedTuple):
    """What is computed and stored as one: a run that is killed loses no more than one of them."""

    name: str  # of its file
    values: dict[str, Any]


@runtime_checkable
class Study(Protocol):
    """A frozen dataclass whose fields are its configuration."""

    @property
    def name(self) -> str:
        """Of its folder."""
        ...

    def points(self) -> Iterator[Point]:
        """In the order in which they are computed, and their rows stored."""
        ...

    def run(self, point: Point, on_chunk: Callable[[str], None]) -> Rows:
        """The rows of a point, which depend on the configuration and the point alone."""
        ...


def make_rows(setting: Mapping[str, Any], draw: int, scheme: str, values: Mapping[str, float]) -> Rows:
    """A row for each metric."""
    shared = {"x": float("nan"), **setting, "draw": draw, "scheme": scheme}
    rows = [{**shared, "metric": metric, "value": float(value)} for metric, value in values.items()]
    return [{name: row[name] for name in [*COLUMNS, *(name for name in row if name not in COLUMNS)]} for row in rows]
