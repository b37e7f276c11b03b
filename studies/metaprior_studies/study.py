"""The interface of a study: a frozen configuration, its points, and the rows of each point."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from metaprior_studies.schema import COLUMNS

Rows = list[dict[str, Any]]


class Point(NamedTuple):
    """The unit of work that is computed and stored at once; a killed run loses at most one."""

    name: str  # of the file with its rows
    values: dict[str, Any]


@runtime_checkable
class Study(Protocol):
    """A frozen dataclass whose fields are its configuration."""

    @property
    def name(self) -> str:
        """The name of the folder with its results."""
        ...

    def points(self) -> Iterator[Point]:
        """Return the points in the order in which they are computed and stored."""
        ...

    def run(self, point: Point, on_chunk: Callable[[str], None]) -> Rows:
        """Return the rows of a point, which depend only on the configuration and the point."""
        ...


def make_rows(setting: Mapping[str, Any], draw: int, scheme: str, values: Mapping[str, float]) -> Rows:
    """Return a row per metric."""
    shared = {"x": float("nan"), **setting, "draw": draw, "scheme": scheme}
    rows = [{**shared, "metric": metric, "value": float(value)} for metric, value in values.items()]
    return [{name: row[name] for name in [*COLUMNS, *(name for name in row if name not in COLUMNS)]} for row in rows]
