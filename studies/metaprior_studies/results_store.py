"""Results on disk: a file per point, written atomically, and one tidy table of all points."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metaprior import files
from metaprior_studies.study import Point, Rows, Study

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
RECORDED = {"points", "seconds", "command", "device", "versions", "commit"}  # keys of every run in provenance.json


class ResultsError(Exception):
    """Results cannot be read, written or resumed; the message names the file and says what to do."""


class Store:
    """The folder of one study: config.json, points/*.json, provenance.json and results.parquet."""

    def __init__(self, folder: Path, study: Study):
        self.folder, self.study = folder, study
        self.points = list(study.points())
        self.config = {"format": FORMAT, "study": study.name, **json.loads(json.dumps(dataclasses.asdict(study)))}  # type: ignore[call-overload]

    def check(self, resume: bool) -> None:
        """Raise if the folder has results of another configuration, or has results and `resume` is False."""
        computed = [point for point in self.points if self.has(point)]
        for point in computed:
            self.rows(point)  # find damaged files before hours of work
        table = self.folder / "results.parquet"
        if table.exists() and not computed:
            raise ResultsError(f"{self.folder} holds results.parquet but none of the points it was made of. Choose "
                "another --out; nothing is overwritten.")  # fmt: skip
        found = self._found_config()
        if found is not None and found != self.config and (computed or table.exists()):
            differences = _differences(found, self.config)
            raise ResultsError(f"{self.folder} holds results of another configuration ({differences}). "
                "Choose another --out, or the options it was made with.")  # fmt: skip
        if found is None and any(self._record(point).get("config") != self._config_digest for point in computed):
            raise ResultsError(f"{self.folder} holds results but no complete config.json, and they are not of this "
                "configuration. Choose another --out.")  # fmt: skip
        if computed and not resume:
            raise ResultsError(f"{self.folder} already holds results. Add --resume to complete them, or choose "
                "another --out; nothing is overwritten.")  # fmt: skip

    def write_config(self) -> None:
        """Write the configuration."""
        if self._found_config() != self.config:
            write_file(self.folder / "config.json", _json(self.config))

    def has(self, point: Point) -> bool:
        """Return whether the point has been computed."""
        return self._path(point).exists()

    def add(self, point: Point, rows: Rows) -> None:
        """Store the rows of a point."""
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        content = json.dumps(columns)
        record = {"config": self._config_digest, "sha256": _digest(content), "columns": content}
        write_file(self._path(point), _json(record))

    def rows(self, point: Point) -> dict[str, list[Any]]:
        """Return the columns of a point."""
        return json.loads(self._record(point)["columns"])

    def _record(self, point: Point) -> dict[str, Any]:
        path = self._path(point)
        record = read_json(path)
        try:
            if _digest(record["columns"]) != record["sha256"]:
                raise ValueError("wrong checksum")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, error) from None
        return record

    def table(self) -> "pd.DataFrame":
        """Return the rows of all points computed so far, in the order of the points."""
        import pandas as pd

        parts = [pd.DataFrame(self.rows(point)) for point in self.points if self.has(point)]
        table = pd.concat(parts, ignore_index=True)
        return table.astype({name: "string" for name in table if isinstance(table[name].iloc[0], str)})

    def write_table(self) -> "pd.DataFrame":
        """Write results.parquet, whose bytes depend only on the results, not on the number of runs that made them."""
        table = self.table()
        write_file(self.folder / "results.parquet", table.to_parquet(index=False, compression="zstd"))
        return table

    def add_provenance(self, provenance: dict[str, Any]) -> None:
        """Add a computed point to provenance.json; points made in the same way are added up."""
        runs = read_runs(self.folder)
        counted = ("points", "seconds")
        if runs and all(runs[-1].get(key) == value for key, value in provenance.items() if key not in counted):
            last = runs.pop()
            provenance = {**provenance, **{key: round(last[key] + provenance[key], 1) for key in counted}}
        write_file(self.folder / "provenance.json", _json({"runs": [*runs, provenance]}))

    def _found_config(self) -> Any:
        """Return the content of config.json; None if it is missing or damaged (points record their configuration)."""
        try:
            return json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    @property
    def _config_digest(self) -> str:
        return _digest(json.dumps(self.config, sort_keys=True))

    def _path(self, point: Point) -> Path:
        return self.folder / "points" / f"{point.name}.json"


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, and make its folder if necessary; errors say what to do."""
    with _readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, content)


class _readable_errors:
    """Turn an OSError, such as that of a full disk, into a ResultsError."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            raise ResultsError(
                f"{self.path} cannot be written ({error.strerror or error}). Finished points are kept: free some disk "
                "space or fix the folder, then run again with --resume."
            ) from None


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded runs that made the results in a folder; none if the file is missing or damaged."""
    try:
        runs = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["runs"]
        return [run for run in runs if set(run) >= RECORDED]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise an error that says what to do."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ResultsError:
    return ResultsError(f"{path} is damaged ({error}). Remove that file, then run again with --resume: only its "
        "content is computed again.")  # fmt: skip


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _differences(found: Any, wanted: dict[str, Any]) -> str:
    if not isinstance(found, dict):
        return "its config.json is not a configuration"
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    return ", ".join(f"{name}: {found.get(name)} there, {wanted.get(name)} requested" for name in names)
