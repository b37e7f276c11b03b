"""The state behind the page: one table, one fit at a time, and the prior that predictions come from."""

import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from metaprior_app import exports
from metaprior_app.chart_data import PredictRequest, check_request, predict_chart
from metaprior_app.chart_inputs import axes_of
from metaprior_app.fits import Fits, columns_of
from metaprior_app.loaded_prior import LoadedPrior
from metaprior_app.messages import CHANGED, InvalidRequest, check
from metaprior_app.open_table import OpenTable, open_table
from metaprior_app.recipes import FitRequest, ReportRequest
from metaprior.checks import is_number
from metaprior.datasets import Sinusoid
from metaprior.estimators.files import load
from metaprior.likelihoods import LIKELIHOODS
from metaprior.tables.csv_files import ENDINGS, CsvFormat, as_csv_format
from metaprior.tables.sniffing import sniff_format

PRIOR_ENDING = ".safetensors"
A_TABLE = "a table (.csv, .tsv, .parquet, also compressed)"
Receive = Callable[[Path], None]  # writes an upload to a path


class Workspace:
    """What all tabs share. Methods that answer requests take and return values of JSON."""

    def __init__(self, folder: Path):
        self.folder, self.revision = folder, 0
        self.table: OpenTable | None = None
        self.prior: LoadedPrior | None = None
        self.fits = Fits(folder, self._adopt)
        self._copies: set[Path] = set()  # folders of uploads that were opened
        self._changing = threading.RLock()  # of table, prior, copies and revision
        self._computing = threading.Lock()  # predictions collect warnings, which threads would mix up

    def state(self) -> dict[str, Any]:
        """Return all that a page needs to show what the server has."""
        from metaprior import __version__

        with self._changing:
            table, prior, progress = self.table, self.prior, self.progress()
        return {
            "version": __version__,
            "likelihoods": [
                {"name": name, "words": kind.words, "takes_exposure": kind.takes_exposure}
                for name, kind in LIKELIHOODS.items()
            ],
            "table": None if table is None else table.describe(),
            "prior": None if prior is None else prior.describe(),
            **progress,
        }

    def progress(self) -> dict[str, Any]:
        """Return the part of the state that changes while a fit runs."""
        fits, prior = self.fits, self.prior
        variants = [] if prior is None else sorted((alpha, key) for key, (alpha, _, _) in prior.variants.items())
        return {
            "revision": self.revision,
            "fit": None if fits.latest is None else fits.latest.describe(),
            "slider": [{"key": key, "alpha": alpha} for alpha, key in variants],
            "slider_left": fits.slider_left,
            "has_report": self.report is not None,
        }

    def close(self) -> None:
        """Stop all that runs."""
        self.fits.stop_slider()
        self.fits.stop()

    def open_path(self, path: Path) -> None:
        """Open a table or a prior of the user's."""
        if path.name.lower().endswith(PRIOR_ENDING):
            self._open_prior(path, path.name)
        else:
            self._open_table(path, path.name, False, sniff_format(path))

    def upload(self, name: str, receive: Receive) -> dict[str, Any]:
        """Open an uploaded table or prior."""
        path = self._receive(name, receive, (*ENDINGS, PRIOR_ENDING), f"{A_TABLE} or a prior (.safetensors)")
        try:
            if path.name.lower().endswith(PRIOR_ENDING):
                self._open_prior(path, name)
            else:
                self._open_table(path, name, True, sniff_format(path))
        except Exception:
            shutil.rmtree(path.parent, ignore_errors=True)
            raise
        with self._changing:
            self._copies.add(path.parent)
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
        path = self._receive(name, lambda path: _write(path, content), ENDINGS, A_TABLE)
        self._open_table(path, name, True, CsvFormat())
        with self._changing:
            self._copies.add(path.parent)
        return self.state()

    def reread(self, request: dict[str, Any]) -> dict[str, Any]:
        """Read the table again, as a CSV file that is written in another way."""
        table = self._current_table()
        given = {name: request.get(name) or None for name in ("sep", "decimal", "encoding")}
        if not all(value is None or isinstance(value, str) for value in given.values()):
            raise InvalidRequest("sep, decimal and encoding must be text.")
        self._open_table(table.file.path, table.name, table.is_copy, as_csv_format(**given))
        return self.state()

    def start_fit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin a fit to the table, in a process of its own."""
        check(FitRequest, request)
        table = self._unchanged_table()
        columns_of(request)
        self.fits.start(table, request)
        return self.progress()

    def start_report(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin to make the report of the prior: its fit again, with a report."""
        check(ReportRequest, request)
        prior = self.prior
        if prior is None or prior.settings is None:
            raise InvalidRequest("A report needs a prior that was fitted on this page.", CHANGED)
        if prior.table is None or prior.table.has_changed:
            raise InvalidRequest("The table has changed since the fit: fit again, then ask for a report.", CHANGED)
        self.fits.start_report(prior, request.get("without_data", False))
        return self.progress()

    @property
    def report(self) -> Path | None:
        """The report of the prior, if it was made."""
        file = None if self.prior is None else self.fits.report_file(self.prior.revision)
        return file if file is not None and file.exists() else None

    def tidy(self, message: str) -> str:
        """Return a message without the folders that uploads are kept in."""
        return re.sub(re.escape(str(self.folder)) + r"/upload-\d+/", "", message)

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """Stop the fit that runs, if one does."""
        self.fits.stop()
        return self.progress()

    def predict(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return what the chart of a new task shows."""
        prior, meta = self._prior_and_meta(request)
        started = time.perf_counter()
        with self._computing:
            shown = predict_chart(meta, request)
        return {**shown, "revision": prior.revision, "milliseconds": round(1e3 * (time.perf_counter() - started), 1)}

    def training_tasks(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the training tasks along an input."""
        prior, axis = self._current_prior(request), request.get("axis")
        if type(axis) is not int or axis not in axes_of(prior.meta):
            raise InvalidRequest(f"axis must be the number of an input that a chart can be drawn along; got {axis!r}.")
        exposure = request.get("exposure")
        if exposure is not None and not (is_number(exposure) and 0.0 < exposure < np.inf):
            raise InvalidRequest(f"exposure must be a positive number; got {exposure!r}.")
        return {"tasks": prior.draw_tasks(axis, exposure)}

    def predictions_csv(self, request: dict[str, Any]) -> bytes:
        """Return what the chart shows as a CSV file."""
        prior, meta = self._prior_and_meta(request)
        with self._computing:
            return exports.predictions_csv(prior, meta, request)

    def readings_csv(self, request: dict[str, Any]) -> bytes:
        """Return the readings of a chart as a CSV file."""
        return exports.readings_csv(*self._prior_and_meta(request), request)

    def code(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the Python and the command line that predict what the chart shows."""
        return exports.code(*self._prior_and_meta(request), request)

    def prior_file(self, key: str | None) -> Path:
        """Return the file of the prior at a place of the slider."""
        if self.prior is None:
            raise InvalidRequest("There is no prior yet.", CHANGED)
        return self.prior.at(key)[2]

    def read_context(self, name: str, receive: Receive) -> dict[str, Any]:
        """Return the readings of an uploaded table, task by task, for the chart."""
        prior = self.prior
        if prior is None:
            raise InvalidRequest("There is no prior yet.", CHANGED)
        path = self._receive(name, receive, ENDINGS, A_TABLE)
        try:
            return {"tasks": exports.read_context(prior, path, name)}
        finally:
            shutil.rmtree(path.parent, ignore_errors=True)

    def _open_table(self, path: Path, name: str, is_copy: bool, how: CsvFormat) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opened = open_table(path, name, is_copy, how)
        with self._changing:
            self.revision += 1
            self.table = opened._replace(revision=self.revision)
            self._remove_unused()

    def _open_prior(self, path: Path, name: str) -> None:
        meta = load(path)
        self.fits.refuse_if_running()
        self.fits.stop_slider()
        self.fits.latest = None
        with self._changing:
            self._adopt(LoadedPrior(meta, path, name))
            self.table = None
            self._remove_unused()

    def _adopt(self, prior: LoadedPrior) -> None:
        """Predict with a prior from now on."""
        with self._changing:
            replaced = self.prior
            self.revision += 1
            prior.revision, self.prior = self.revision, prior
            if replaced is not None:
                self.fits.remove_files(replaced)
            self._remove_unused()

    def _remove_unused(self) -> None:
        """Remove uploads that neither the page, nor its prior, nor a fit that runs needs any more."""
        prior, tables = self.prior, [self.table, self.fits.running_table]
        used = set() if prior is None else {prior.file.parent}
        tables += [] if prior is None else [prior.table]
        used |= {table.file.path.parent for table in tables if table is not None}
        for folder in self._copies - used:
            shutil.rmtree(folder, ignore_errors=True)
        self._copies &= used

    def _current_table(self) -> OpenTable:
        if self.table is None:
            raise InvalidRequest("There is no table yet: choose one first.", CHANGED)
        return self.table

    def _unchanged_table(self) -> OpenTable:
        """Return the table; raise if its file has changed, after reading it again."""
        table = self._current_table()
        if not table.has_changed:
            return table
        if not table.file.path.exists():
            raise InvalidRequest(f"{table.name} is not there any more. Choose it again.", CHANGED)
        self._open_table(table.file.path, table.name, table.is_copy, table.file.format)
        found = f"{table.name} has changed since the page read it. It was read again: check the columns, then fit."
        raise InvalidRequest(found, CHANGED)

    def _current_prior(self, request: dict[str, Any]) -> LoadedPrior:
        prior = self.prior
        if prior is None:
            raise InvalidRequest("There is no prior yet: fit one first.", CHANGED)
        if request.get("revision") != prior.revision:
            raise InvalidRequest("The prior was replaced, perhaps in another tab. The page shows the new one.", CHANGED)
        return prior

    def _prior_and_meta(self, request: dict[str, Any]) -> tuple[LoadedPrior, Any]:
        check(PredictRequest, request)
        prior = self._current_prior(request)
        meta = prior.at(request.get("alpha"))[1]
        check_request(meta, request)
        return prior, meta

    def _receive(self, name: str, receive: Receive, endings: tuple[str, ...], known: str) -> Path:
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


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _sinusoid() -> bytes:
    """Return tasks of the paper's sinusoid as a table."""
    problem, lines = Sinusoid(deviation=0.25), ["task,environment,x,y"]
    groups = {"source": problem.source_tasks(25, 5, rng=0), "target": problem.target_tasks(8, 5, rng=1)}
    for name, tasks in groups.items():
        for i, (x, y) in enumerate(tasks):
            pairs = zip(x[:, 0].tolist(), y.tolist(), strict=True)
            lines += [f"{name[0]}{i + 1:02d},{name},{a:.4f},{b:.4f}" for a, b in pairs]
    return ("\n".join(lines) + "\n").encode()
