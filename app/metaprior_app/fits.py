"""Fits begun on the page: one at a time, then those of the slider's other weights of the source."""

import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaprior_app.chart_inputs import as_coded
from metaprior_app.fit_process import FitProcess
from metaprior_app.loaded_prior import LoadedPrior, searched_alphas
from metaprior_app.messages import CHANGED, InvalidRequest, from_command, spoken
from metaprior_app.open_table import OpenTable
from metaprior_app.recipes import fit_arguments, inputs_of
from metaprior.estimators.files import load
from metaprior.predict.ensemble import predicts_labels
from metaprior.tables.columns import Columns, as_columns
from metaprior.tables.covariate_columns import with_fitted_kinds
from metaprior.tables.grouping import group_rows


@dataclass
class Fit:
    """A fit, or the report of one."""

    process: FitProcess
    what: str  # "fit" or "report"
    settings: dict[str, Any]
    table: OpenTable
    problem: str | None = None  # of loading what was fitted
    is_complete: bool = False  # loaded, or ended otherwise

    @property
    def is_running(self) -> bool:
        """Whether it is not complete yet."""
        return self.describe()["status"] == "running"

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


class Fits:
    """The fit that runs or ran last. `adopt` takes the prior of a fit that succeeds, and gives it its revision."""

    def __init__(self, folder: Path, adopt: Callable[[LoadedPrior], None]):
        self.folder, self.adopt = folder, adopt
        self.latest: Fit | None = None
        self.slider_left = 0  # weights that are yet to be fitted
        self._count = 0
        self._changing = threading.RLock()
        self._slider: FitProcess | None = None
        self._of_slider: LoadedPrior | None = None  # whose other weights are being fitted

    def report_file(self, revision: int) -> Path:
        """Return where the report of a prior is, once it was asked for."""
        return self.folder / f"report-{revision}.html"

    def start(self, table: OpenTable, settings: dict[str, Any]) -> None:
        """Begin a fit to a table."""
        with self._changing:
            self.refuse_if_running()
            self.stop_slider()
            self._count += 1
            out = self.folder / f"prior-{self._count}.safetensors"
            self.latest = fit = Fit(FitProcess(_arguments(table, settings, out)), "fit", settings, table)
        threading.Thread(target=self._finish, args=(fit, out), daemon=True).start()

    def start_report(self, prior: LoadedPrior, without_data: bool = False) -> None:
        """Begin to make a report: the same fit again, in the same process as its report."""
        assert prior.table is not None
        assert prior.settings is not None
        out, made = self.folder / "report.safetensors", self.folder / "report.html"
        with self._changing:
            self.refuse_if_running()
            self.report_file(prior.revision).unlink(missing_ok=True)  # it may be the one with data
            options = [f"--report={made}", *(["--report-without-data"] if without_data else [])]
            process = FitProcess([*_arguments(prior.table, prior.settings, out), *options])
            self.latest = fit = Fit(process, "report", prior.settings, prior.table)
        files = out, made, self.report_file(prior.revision)
        threading.Thread(target=self._finish_report, args=(fit, *files), daemon=True).start()

    def stop(self) -> None:
        """Stop the fit that runs, if one does."""
        if self.latest is not None:
            self.latest.process.stop()

    def stop_slider(self) -> None:
        """Fit no other weights."""
        with self._changing:
            self.slider_left, self._of_slider = 0, None
            slider = self._slider
        if slider is not None:
            slider.stop()

    @property
    def running_table(self) -> OpenTable | None:
        """The table of the fit or the report that is being made."""
        return self.latest.table if self.latest is not None and self.latest.is_running else None

    def remove_files(self, prior: LoadedPrior) -> None:
        """Remove what was made of a prior that is not shown any more; files of the user's stay."""
        for path in (prior.file, *(file for _, _, file in prior.variants.values()), self.report_file(prior.revision)):
            if path.parent == self.folder:
                path.unlink(missing_ok=True)

    def refuse_if_running(self) -> None:
        """Raise if a fit runs."""
        if self.latest is not None and self.latest.is_running:
            raise InvalidRequest("A fit is running, perhaps in another tab. Stop it first.", CHANGED)

    def _finish_report(self, fit: Fit, out: Path, made: Path, report: Path) -> None:
        """Wait for a report, whose command is to name files as users do, not as they lie in the folder of the page."""
        fit.process.wait()
        try:
            if fit.process.result is not None:
                text = made.read_text(encoding="utf-8").replace(str(out), "prior.safetensors")
                if fit.table.is_copy:
                    text = text.replace(f"{fit.table.file.path.parent}{os.sep}", "")
                report.write_text(text, encoding="utf-8")
        except OSError as error:  # a full disk, say
            fit.problem = spoken(error)
        for path in (out, made):
            path.unlink(missing_ok=True)
        fit.is_complete = True

    def _finish(self, fit: Fit, out: Path) -> None:
        """Wait for a fit, load what it has written, and fit the other weights of the slider."""
        fit.process.wait()
        if fit.process.result is None:
            fit.is_complete = True
            return
        try:
            prior = _load_fitted(fit, out)
        except Exception as error:  # of a table that was changed meanwhile, say
            fit.problem = spoken(error)
            return
        alphas = searched_alphas(prior.meta)
        with self._changing:
            self.adopt(prior)
            self._of_slider, self.slider_left, fit.is_complete = prior, len(alphas), True
        for alpha in alphas:
            if not self._fit_variant(prior, fit, alpha):
                return

    def _fit_variant(self, prior: LoadedPrior, fit: Fit, alpha: float) -> bool:
        """Fit the prior with a given weight of the source; return whether to go on."""
        out = self.folder / f"prior-{prior.revision}-{alpha:.6g}.safetensors"
        with self._changing:
            if self._of_slider is not prior or fit.table.has_changed:
                self.slider_left = 0 if self._of_slider is prior else self.slider_left
                return False
            self._slider = process = FitProcess(_arguments(fit.table, fit.settings, out, alpha))
        process.wait()
        variant = None
        with suppress(ValueError, OSError):  # then the slider has one place less
            variant = load(out) if process.status == "done" else None
        with self._changing:
            if self._of_slider is not prior:
                out.unlink(missing_ok=True)
                return False
            self.slider_left -= 1
            if variant is not None:
                prior.variants[f"{alpha:.6g}"] = (alpha, variant, out)
        return True


def _arguments(table: OpenTable, settings: dict[str, Any], out: Path, alpha: float | None = None) -> list[str]:
    return fit_arguments(table.file.path, table.file.format._asdict(), settings, out, alpha)


def columns_of(settings: dict[str, Any]) -> Columns:
    """Return the columns that were chosen, checked."""
    named = {name: settings.get(name) for name in ("task", "y", "environment")}
    return as_columns(**named, x=inputs_of(settings), covariates=settings.get("covariates") or None)


def _load_fitted(fit: Fit, out: Path) -> LoadedPrior:
    """Load what a fit has written, and the tasks that it was fitted to."""
    meta, table, settings = load(out), fit.table, fit.settings
    drops: Any = {name: bool(settings.get(name)) for name in ("drop_missing", "drop_duplicates")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit has told them
        columns = with_fitted_kinds(meta, columns_of(settings))
        grouped = group_rows(table.file, columns, labels=predicts_labels(meta), **drops)
        tasks = as_coded(meta, grouped.tasks, table.name)
    shown = fit_arguments(table.name, table.file.format._asdict(), settings, "prior.safetensors")
    known: Any = {"fit": shown, "settings": settings, "table": table}
    return LoadedPrior(meta, out, table.name, tasks=tasks, dates=grouped.dates, **known)
