"""The state behind the page: one table, one fit at a time, and the prior that predictions come from."""

import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from metaprior.app import exports
from metaprior.app.chart_data import PREDICT, predict_chart
from metaprior.app.fit_process import FitProcess
from metaprior.app.loaded_prior import LoadedPrior, searched_alphas
from metaprior.app.messages import InvalidRequest, from_command, spoken
from metaprior.app.open_table import OpenTable, open_table
from metaprior.app.recipes import FIT, fit_arguments
from metaprior.estimators.persistence import load
from metaprior.prediction.ensemble import predicts_labels
from metaprior.schema import Mismatch, Schema
from metaprior.tables.columns import as_columns
from metaprior.tables.csv_files import ENDINGS, CsvFormat, as_csv_format
from metaprior.tables.grouping import group_rows

PRIOR_ENDING = ".safetensors"
CHANGED = 409  # HTTP: the request does not fit the state any more


@dataclass
class Fit:
    """A fit begun on the page, then the fits of the slider's other weights."""

    process: FitProcess
    what: str  # "fit" or "report"
    settings: dict[str, Any]
    table: OpenTable
    problem: str | None = None  # of loading what was fitted
    is_complete: bool = False  # loaded, or ended otherwise

    def describe(self) -> dict[str, Any]:
        """Return its state for the page."""
        state = self.process.describe()
        if state["status"] == "done" and not self.is_complete:
            state["status"] = "running"
        if self.problem is not None:
            state |= {"status": "failed", "error": self.problem}
        spell = lambda message: from_command(message, str(self.table.file.path), self.table.name)  # noqa: E731
        state["error"] = None if state["error"] is None else spell(state["error"])
        return {**state, "what": self.what, "notes": [spell(note) for note in state["notes"]]}


class Workspace:
    """What all tabs share. Methods that answer requests take and return values of JSON."""

    def __init__(self, folder: Path):
        self.folder, self.revision = folder, 0
        self.table: OpenTable | None = None
        self.fit: Fit | None = None
        self.prior: LoadedPrior | None = None
        self._changing = threading.RLock()  # of the state
        self._computing = threading.Lock()  # predictions collect warnings, which threads would mix up
        self._slider: FitProcess | None = None
        self._slider_left = 0

    # ---------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return all that a page needs to show what the server has."""
        from metaprior import __version__

        with self._changing:
            return {
                "version": __version__,
                "revision": self.revision,
                "table": None if self.table is None else self.table.describe(),
                "prior": None if self.prior is None else self.prior.describe(),
                **self.progress(),
            }

    def progress(self) -> dict[str, Any]:
        """Return the part of the state that changes while a fit runs."""
        with self._changing:
            slider = [] if self.prior is None else sorted((a, key) for key, (a, _, _) in self.prior.variants.items())
            return {
                "revision": self.revision,
                "fit": None if self.fit is None else self.fit.describe(),
                "slider": [{"key": key, "alpha": alpha} for alpha, key in slider],
                "slider_left": self._slider_left,
                "has_report": self.report_file.exists(),
            }

    @property
    def report_file(self) -> Path:
        """The report of the latest fit, if it was asked for."""
        return self.folder / "report.html"

    # ---------------------------------------------------------------- tables

    def open_path(self, path: Path) -> None:
        """Open a table or a prior of the user's."""
        if path.name.lower().endswith(PRIOR_ENDING):
            self._open_prior(path, path.name)
        else:
            self._open(path, path.name, False, CsvFormat())

    def upload(self, name: str, receive: Callable[[Path], None]) -> dict[str, Any]:
        """Open an uploaded table or prior, which `receive` writes to a path."""
        known = "a table (.csv, .tsv, .parquet, also compressed) or a prior (.safetensors)"
        path = self._receive(name, receive, (*ENDINGS, PRIOR_ENDING), known)
        try:
            if path.name.lower().endswith(PRIOR_ENDING):
                self._open_prior(path, name)
            else:
                self._open(path, name, True, CsvFormat())
        except Exception:
            shutil.rmtree(path.parent, ignore_errors=True)
            raise
        return self.state()

    def example(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open one of the bundled examples."""
        if request.get("name") == "sinusoid":
            content, name = _sinusoid(), "sinusoid.csv"
        elif request.get("name") == "patients":
            source = resources.files("metaprior").joinpath("datasets", "example", "patients.csv")
            content, name = source.read_bytes(), "patients.csv"
        else:
            raise InvalidRequest(f"name must be patients or sinusoid; got {request.get('name')!r}.")
        path = self.folder / name
        path.write_bytes(content)
        self._open(path, name, True, CsvFormat())
        return self.state()

    def reread(self, request: dict[str, Any]) -> dict[str, Any]:
        """Read the table again, as a CSV file that is written in another way."""
        table = self._current_table()
        given = {name: request.get(name) or None for name in ("sep", "decimal", "encoding")}
        if not all(value is None or isinstance(value, str) for value in given.values()):
            raise InvalidRequest("sep, decimal and encoding must be text.")
        self._open(table.file.path, table.name, table.is_copy, as_csv_format(**given))
        return self.state()

    def _open(self, path: Path, name: str, is_copy: bool, how: CsvFormat) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opened = open_table(path, name, is_copy, how, self.revision + 1)
        with self._changing:
            self.table, self.revision = opened, self.revision + 1

    def _current_table(self) -> OpenTable:
        if self.table is None:
            raise InvalidRequest("There is no table yet: choose one first.", CHANGED)
        return self.table

    # ---------------------------------------------------------------- fits

    def start_fit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin a fit to the table, in a process of its own."""
        check(FIT, request)
        table = self._current_table()
        if table.has_changed:
            if not table.file.path.exists():
                raise InvalidRequest(f"{table.name} is not there any more. Choose it again.", CHANGED)
            self._open(table.file.path, table.name, table.is_copy, table.file.format)
            found = f"{table.name} has changed since the page read it. It was read again: check the columns, then fit."
            raise InvalidRequest(found, CHANGED)
        as_columns(**{name: request.get(name) for name in ("task", "x", "y", "environment")})
        with self._changing:
            self._refuse_if_running()
            self._stop_slider()
            self.report_file.unlink(missing_ok=True)
            out = self.folder / f"prior-{self.revision}.safetensors"
            arguments = fit_arguments(table.file.path, table.file.format._asdict(), request, out)
            self.fit = Fit(FitProcess(arguments), "fit", request, table)
            threading.Thread(target=self._finish, args=(self.fit, out), daemon=True).start()
        return self.progress()

    def start_report(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin to make the report of the prior that was fitted last: its fit again, with a report."""
        with self._changing:
            self._refuse_if_running()
            prior, table = self.prior, self.table
            if prior is None or prior.settings is None or table is None:
                raise InvalidRequest("A report needs a prior that was fitted on this page.", CHANGED)
            if table.has_changed or prior.table != table.name:
                raise InvalidRequest(
                    f"{prior.table} has changed or was closed: fit again, then ask for a report.", CHANGED
                )
            arguments = fit_arguments(
                table.file.path, table.file.format._asdict(), prior.settings, self.folder / "report.safetensors"
            )
            process = FitProcess([*arguments, f"--report={self.report_file}"])
            self.fit = Fit(process, "report", prior.settings, table)
            threading.Thread(target=self._await_report, args=(self.fit,), daemon=True).start()
        return self.progress()

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """Stop the fit that runs, if one does."""
        fit = self.fit
        if fit is not None:
            fit.process.stop()
        return self.progress()

    def close(self) -> None:
        """Stop all that runs."""
        self.stop({})
        self._stop_slider()

    def _refuse_if_running(self) -> None:
        if self.fit is not None and self.fit.describe()["status"] == "running":
            raise InvalidRequest("A fit is running, perhaps in another tab. Stop it first.", CHANGED)

    def _await_report(self, fit: Fit) -> None:
        fit.process.wait()
        fit.is_complete = True

    def _finish(self, fit: Fit, out: Path) -> None:
        """Wait for a fit, load what it has written, and fit the other weights of the slider."""
        fit.process.wait()
        if fit.process.result is None:
            fit.is_complete = True
            return
        try:
            prior = self._load_fitted(fit, out)
        except Exception as error:
            fit.problem = spoken(error)
            return
        with self._changing:
            self.prior, self.revision = prior, self.revision + 1
            fit.is_complete = True
            alphas = searched_alphas(prior.meta)
            self._slider_left = len(alphas)
        for alpha in alphas:
            if not self._fit_variant(prior, fit, alpha):
                return

    def _load_fitted(self, fit: Fit, out: Path) -> LoadedPrior:
        meta, settings, table = load(out), fit.settings, fit.table
        columns = as_columns(**{name: settings.get(name) for name in ("task", "x", "y", "environment")})
        drops: Any = {name: bool(settings.get(name)) for name in ("drop_missing", "drop_duplicates")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit has told them
            grouped = group_rows(table.file, columns, labels=predicts_labels(meta), **drops)
        shown = fit_arguments(table.name, table.file.format._asdict(), settings, "prior.safetensors")
        known: Any = {"fit": shown, "settings": settings, "table": table.name, "format": table.file.format}
        return LoadedPrior(meta, out, self.revision + 1, table.name, grouped.tasks, grouped.dates, **known)

    def _fit_variant(self, prior: LoadedPrior, fit: Fit, alpha: float) -> bool:
        """Fit the prior with a given weight of the source; return whether to go on."""
        out, table = self.folder / f"prior-{prior.revision}-{alpha:.6g}.safetensors", fit.table
        with self._changing:
            if self.prior is not prior or table.has_changed:
                self._slider_left = 0
                return False
            arguments = fit_arguments(table.file.path, table.file.format._asdict(), fit.settings, out, alpha)
            self._slider = process = FitProcess(arguments)
        process.wait()
        if process.status == "stopped":
            return False
        with self._changing:
            if self.prior is prior:
                self._slider_left -= 1
                if process.status == "done":
                    prior.variants[f"{alpha:.6g}"] = (alpha, load(out), out)
        return self.prior is prior

    def _stop_slider(self) -> None:
        self._slider_left = 0
        if self._slider is not None:
            self._slider.stop()

    # ---------------------------------------------------------------- priors and predictions

    def _open_prior(self, path: Path, name: str) -> None:
        meta = load(path)
        with self._changing:
            self._refuse_if_running()
            self._stop_slider()
            self.revision += 1
            self.prior, self.table, self.fit = LoadedPrior(meta, path, self.revision, name), None, None

    def current_prior(self, request: dict[str, Any]) -> LoadedPrior:
        """Return the prior that a request is about."""
        prior = self.prior
        if prior is None:
            raise InvalidRequest("There is no prior yet: fit one first.", CHANGED)
        if request.get("revision") != prior.revision:
            raise InvalidRequest("The prior was replaced, perhaps in another tab. The page shows the new one.", CHANGED)
        return prior

    def predict(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return what the chart of a new task shows."""
        prior, meta = self._prior_and_meta(request)
        started = time.perf_counter()
        with self._computing:
            shown = predict_chart(meta, request)
        return {**shown, "revision": prior.revision, "milliseconds": round(1e3 * (time.perf_counter() - started), 1)}

    def training_tasks(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the training tasks along an input."""
        prior, axis = self.current_prior(request), request.get("axis")
        if not isinstance(axis, int) or not 0 <= axis < prior.meta.n_features_in_:
            raise InvalidRequest(f"axis must be the number of an input; got {axis!r}.")
        return {"tasks": prior.draw_tasks(axis)}

    def predictions_csv(self, request: dict[str, Any]) -> bytes:
        """Return the predictions along the chart's axis as a CSV file."""
        prior, meta = self._prior_and_meta(request)
        with self._computing:
            return exports.predictions_csv(prior, meta, request)

    def readings_csv(self, request: dict[str, Any]) -> bytes:
        """Return the readings of a chart as a CSV file."""
        return exports.readings_frame(*self._prior_and_meta(request), request).to_csv(index=False).encode()

    def code(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the Python and the command line that predict what the chart shows."""
        prior, meta = self._prior_and_meta(request)
        return exports.code(prior, meta, request)

    def prior_file(self, key: str | None) -> Path:
        """Return the file of the prior at a place of the slider."""
        if self.prior is None:
            raise InvalidRequest("There is no prior yet.", CHANGED)
        return self._at(self.prior, key)[2]

    def read_context(self, name: str, receive: Callable[[Path], None]) -> dict[str, Any]:
        """Return the readings of an uploaded table, task by task, for the chart."""
        prior = self.prior
        if prior is None:
            raise InvalidRequest("There is no prior yet.", CHANGED)
        place = self._receive(name, receive, ENDINGS, "a table (.csv, .tsv, .parquet, also compressed)")
        try:
            return {"tasks": exports.read_context(prior, place, name)}
        finally:
            shutil.rmtree(place.parent, ignore_errors=True)

    def _receive(self, name: str, receive: Callable[[Path], None], endings: tuple[str, ...], known: str) -> Path:
        """Write an upload to a folder of its own, under its name as far as that is harmless."""
        plain = re.sub(r"[^\w.\- ]", "_", Path(name.replace("\\", "/")).name)[-100:].lstrip(".")
        if not plain.lower().endswith(endings):
            raise InvalidRequest(f"{name[:100] or 'The file'} is not {known}.")
        place = self.folder / f"upload-{time.monotonic_ns()}"
        place.mkdir()
        try:
            receive(place / plain)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        return place / plain

    def _prior_and_meta(self, request: dict[str, Any]) -> tuple[LoadedPrior, Any]:
        check(PREDICT, request)
        prior = self.current_prior(request)
        return prior, self._at(prior, request.get("alpha"))[1]

    def _at(self, prior: LoadedPrior, key: str | None) -> tuple[float | None, Any, Path]:
        try:
            return prior.at(key)
        except KeyError:
            raise InvalidRequest(f"There is no prior at alpha = {key} (yet).", CHANGED) from None


def check(schema: Schema, request: dict[str, Any]) -> None:
    """Raise an InvalidRequest that names what does not fit the schema."""
    try:
        schema(request, "request")
    except Mismatch as error:
        raise InvalidRequest(f"{error}.") from None


def _sinusoid() -> bytes:
    """Return tasks of the paper's sinusoid as a table."""
    from metaprior.datasets import Sinusoid

    problem, lines = Sinusoid(deviation=0.25), ["task,environment,x,y"]
    groups = {"source": problem.source_tasks(25, 5, rng=0), "target": problem.target_tasks(8, 5, rng=1)}
    for name, tasks in groups.items():
        for i, (x, y) in enumerate(tasks):
            pairs = zip(x[:, 0].tolist(), y.tolist(), strict=True)
            lines += [f"{name[0]}{i + 1:02d},{name},{a:.4f},{b:.4f}" for a, b in pairs]
    return ("\n".join(lines) + "\n").encode()
