"""The state behind the page: one table, one fit at a time, and the prior that predictions come from."""

import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from metaprior.checks import is_number
from metaprior.datasets import Sinusoid
from metaprior.estimators.classifier import LabelsPrior
from metaprior.estimators.files import load
from metaprior.files import as_struct
from metaprior.tables.grouping import fitted_columns, group_rows
from metaprior.tables.reading import ENDINGS, CsvFormat, as_csv_format, sniff_format
from metaprior_app import exports
from metaprior_app.charts import PredictRequest, axes_of, predict_chart
from metaprior_app.fits import Fit
from metaprior_app.priors import LoadedPrior, Variant, searched_alphas
from metaprior_app.recipes import PRIOR_NAME, FitRequest, ReportRequest, fit_arguments
from metaprior_app.tables import CHANGED, InvalidRequest, OpenTable, open_table, spoken

PRIOR_ENDING = ".safetensors"
JSON = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A fit, or the report of one, for the page."""

    fit: Fit
    what: str  # "fit" or "report"
    table: OpenTable
    file: Path

    def describe(self) -> JSON:
        """Return its state. The command calls the table by its path."""
        state = self.fit.describe()
        spell = lambda message: spoken(message.replace(str(self.table.file.path), self.table.name))  # noqa: E731
        error = None if state["error"] is None else spell(state["error"])
        return {**state, "what": self.what, "error": error, "notes": [spell(note) for note in state["notes"]]}


class Workspace:
    """What all tabs share. Methods that answer requests take and return values of JSON, while they hold the lock.

    Every upload and every fit has a folder of its own in the folder of the page.
    """

    def __init__(self, folder: Path):
        self.folder, self.revision = folder, 0
        self.table: OpenTable | None = None
        self.prior: LoadedPrior | None = None
        self.job: Job | None = None  # the fit or the report that is made, or was made last
        self.slider_left = 0  # weights of the source that are yet to be fitted
        self.lock = threading.RLock()
        self._slider: Fit | None = None

    def state(self) -> JSON:
        table, prior = self.table, self.prior
        return {
            "table": None if table is None else table.describe(),
            "prior": None if prior is None else prior.describe(),
            **self.progress(),
        }

    def progress(self) -> JSON:
        variants = (
            [] if self.prior is None else sorted(self.prior.variants.items(), key=lambda pair: pair[1].alpha or 0.0)
        )
        return {
            "revision": self.revision,
            "fit": None if self.job is None else self.job.describe(),
            "slider": [{"key": key, "alpha": variant.alpha} for key, variant in variants],
            "slider_left": self.slider_left,
            "has_report": self.report is not None,
        }

    def close(self) -> None:
        self.stop_slider()
        self.stop()

    # ---------------------------------------------------------------- tables and priors

    def open_path(self, path: Path) -> None:
        with self.lock:
            self._open(path, path.name, is_copy=False)

    def upload(self, path: Path, name: str) -> JSON:
        self._open(self._keep(path, name, PRIOR_ENDING), name, is_copy=True)
        return self.state()

    def example(self, asked: JSON) -> JSON:
        if asked.get("name") == "sinusoid":
            content = _sinusoid().encode()
        elif asked.get("name") == "patients":
            content = resources.files("metaprior").joinpath("datasets", "example", "patients.csv").read_bytes()
        else:
            raise InvalidRequest(f"name must be patients or sinusoid; got {asked.get('name')!r}.")
        path = self.new_upload()
        path.write_bytes(content)
        return self.upload(path, f"{asked['name']}.csv")

    def reread(self, asked: JSON) -> JSON:
        """Read the table again, as a CSV file that is written in another way."""
        table = self._current_table()
        given = {name: asked.get(name) or None for name in CsvFormat._fields}
        if not all(value is None or isinstance(value, str) for value in given.values()):
            raise InvalidRequest("sep, decimal and encoding must be text.")
        self._open_table(table.file.path, table.name, table.is_copy, as_csv_format(**given))
        return self.state()

    def read_context(self, path: Path, name: str) -> JSON:
        prior = self._current_prior()
        kept = self._keep(path, name)
        try:
            return {"tasks": exports.read_context(prior, kept, name)}
        finally:
            shutil.rmtree(kept.parent, ignore_errors=True)

    def new_upload(self) -> Path:
        return self.folder / f"{time.monotonic_ns()}.part"

    def _keep(self, path: Path, name: str, *also: str) -> Path:
        """Move an upload to a folder of its own, under its name as far as that is harmless."""
        plain = re.sub(r"[^\w.\- ]", "_", Path(name.replace("\\", "/")).name)[-100:].lstrip(".")
        if not plain.lower().endswith((*ENDINGS, *also)):
            known = "a table (.csv, .tsv, .parquet, also compressed)" + " or a prior (.safetensors)" * bool(also)
            raise InvalidRequest(f"{name[:100] or 'The file'} is not {known}.")
        kept = path.with_suffix("") / plain
        kept.parent.mkdir()
        return path.rename(kept)

    def _open(self, path: Path, name: str, is_copy: bool) -> None:
        try:
            if not path.name.lower().endswith(PRIOR_ENDING):
                return self._open_table(path, name, is_copy, sniff_format(path))
            self._refuse_if_running()
            prior = LoadedPrior(load(path), path, name)
            self.stop_slider()
            self.job = self.table = None
            self._adopt(prior)
        except Exception:
            self._remove_unused()
            raise

    def _open_table(self, path: Path, name: str, is_copy: bool, how: CsvFormat) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.table = open_table(path, name, is_copy, how, self.revision + 1)
        self.revision += 1
        self._remove_unused()

    def _adopt(self, prior: LoadedPrior) -> None:
        self.revision += 1
        prior.revision, self.prior = self.revision, prior
        self._remove_unused()

    def _remove_unused(self) -> None:
        """Remove folders that neither the page, nor its prior, nor a fit that runs needs any more."""
        job = self.job if self.job is not None and self.job.fit.status == "running" else None
        tables = [each.table for each in (self, self.prior, job) if each is not None]
        used = {table.file.path.parent for table in tables if table is not None}
        used |= {each.file.parent for each in (self.prior, job) if each is not None}
        for each in self.folder.iterdir():
            if each.is_dir() and each not in used:
                shutil.rmtree(each, ignore_errors=True)

    # ---------------------------------------------------------------- fits

    def start_fit(self, asked: JSON) -> JSON:
        settings = _checked(FitRequest, asked)
        self._refuse_if_running()
        table, _ = self._unchanged_table(), settings.columns
        self.stop_slider()
        file = self.folder / f"fit-{time.monotonic_ns()}" / PRIOR_NAME
        file.parent.mkdir()
        self._begin("fit", settings, table, file, self._finish_fit)
        return self.progress()

    def start_report(self, asked: JSON) -> JSON:
        """Begin to make the report of the prior: its fit again, in the same process as its report."""
        without_data, prior = _checked(ReportRequest, asked).without_data, self.prior
        self._refuse_if_running()
        if prior is None or prior.settings is None or prior.table is None:
            raise InvalidRequest("A report needs a prior that was fitted on this page.", CHANGED)
        if prior.table.has_changed:
            raise InvalidRequest("The table has changed since the fit: fit again, then ask for a report.", CHANGED)
        _report_of(prior).unlink(missing_ok=True)  # it may be the one with data
        file = prior.file.with_name("again.safetensors")
        report = [f"--report={file.with_suffix('.html')}", *["--private"] * without_data]
        self._begin("report", prior.settings, prior.table, file, self._finish_report, report)
        return self.progress()

    def stop(self) -> JSON:
        if self.job is not None:
            self.job.fit.stop()
        return self.progress()

    def stop_slider(self) -> None:
        self.slider_left = 0
        if self._slider is not None:
            self._slider.stop()

    @property
    def report(self) -> Path | None:
        made = self.prior is not None and self.prior.settings is not None and _report_of(self.prior).exists()
        return _report_of(self.prior) if self.prior is not None and made else None

    def _refuse_if_running(self) -> None:
        if self.job is not None and self.job.fit.status == "running":
            raise InvalidRequest("A fit is running, perhaps in another tab. Stop it first.", CHANGED)

    def _begin(
        self,
        what: str,
        settings: FitRequest,
        table: OpenTable,
        file: Path,
        finish: Callable[[FitRequest, OpenTable, Path], None],
        more: Sequence[str] = (),
    ) -> None:
        arguments = [*fit_arguments(table.file.path, table.file.format, settings, file), *more]
        self.job = Job(Fit(arguments, partial(finish, settings, table, file)), what, table, file)

    def _finish_fit(self, settings: FitRequest, table: OpenTable, file: Path) -> None:
        """Predict with what was fitted, and fit the other weights of the slider."""
        prior = _load_fitted(settings, table, file)
        with self.lock:
            self._adopt(prior)
            self.slider_left = len(searched_alphas(prior.meta))
        threading.Thread(target=self._fit_variants, args=(prior, settings, table), daemon=True).start()

    def _fit_variants(self, prior: LoadedPrior, settings: FitRequest, table: OpenTable) -> None:
        """Fit the prior at every weight of the source that was compared, until the slider is stopped."""
        for alpha in searched_alphas(prior.meta):
            file = prior.file.with_name(f"prior-{alpha:.6g}.safetensors")
            with self.lock:
                self.slider_left = 0 if self.prior is prior and table.has_changed else self.slider_left
                if self.prior is not prior or not self.slider_left:
                    return
                self._slider = Fit(fit_arguments(table.file.path, table.file.format, settings, file, alpha))
            self._slider.wait()
            with self.lock, suppress(ValueError, OSError):  # then the slider has one place less
                if self.prior is prior:
                    self.slider_left = max(self.slider_left - 1, 0)
                    prior.variants[f"{alpha:.6g}"] = Variant(alpha, load(file), file)

    def _finish_report(self, settings: FitRequest, table: OpenTable, file: Path) -> None:
        """Keep a report, whose command is to name files as users do, not as they lie in the folder of the page."""
        made = file.with_suffix(".html")
        text = made.read_text(encoding="utf-8").replace(str(file), PRIOR_NAME)
        if table.is_copy:
            text = text.replace(f"{table.file.path.parent}{os.sep}", "")
        made.write_text(text, encoding="utf-8")
        made.replace(made.with_name("report.html"))
        file.unlink()

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

    # ---------------------------------------------------------------- predictions

    def predict(self, asked: JSON) -> JSON:
        started = time.perf_counter()
        shown = self._predict(asked, lambda _, place, request: predict_chart(place.meta, request))
        return {**shown, "milliseconds": round(1e3 * (time.perf_counter() - started), 1)}

    def predictions_csv(self, asked: JSON) -> str:
        return self._predict(asked, exports.predictions_csv)

    def readings_csv(self, asked: JSON) -> str:
        return self._predict(asked, exports.readings_frame).to_csv(index=False)

    def code(self, asked: JSON) -> JSON:
        return self._predict(asked, exports.code)

    def training_tasks(self, asked: JSON) -> JSON:
        prior, axis, exposure = self._current_prior(asked), asked.get("axis"), asked.get("exposure")
        if type(axis) is not int or axis not in axes_of(prior.meta):
            raise InvalidRequest(f"axis must be the number of an input that a chart can be drawn along; got {axis!r}.")
        if exposure is not None and not (is_number(exposure) and exposure > 0.0):
            raise InvalidRequest(f"exposure must be a positive number; got {exposure!r}.")
        return {"tasks": prior.draw_tasks(axis, exposure)}

    def prior_file(self, key: str | None) -> Path:
        return self._current_prior().at(key).file

    def _predict(self, asked: JSON, answer: Callable[[LoadedPrior, Variant, PredictRequest], Any]) -> Any:
        request = _checked(PredictRequest, asked)
        prior = self._current_prior(asked)
        place = prior.at(request.alpha)
        request.check(place.meta)
        return answer(prior, place, request)

    def _current_prior(self, asked: JSON | None = None) -> LoadedPrior:
        if self.prior is None:
            raise InvalidRequest("There is no prior yet: fit one first.", CHANGED)
        if asked is not None and asked.get("revision") != self.prior.revision:
            raise InvalidRequest("The prior was replaced, perhaps in another tab. The page shows the new one.", CHANGED)
        return self.prior


def _checked(schema: Any, asked: JSON) -> Any:
    """Return a request as a struct of msgspec; raise an InvalidRequest that names what does not fit."""
    try:
        return as_struct(asked, schema, "request")
    except ValueError as error:
        raise InvalidRequest(f"{error}.") from None


def _report_of(prior: LoadedPrior) -> Path:
    return prior.file.with_name("report.html")


def _load_fitted(settings: FitRequest, table: OpenTable, file: Path) -> LoadedPrior:
    meta = load(file)
    how: Any = {"drop_missing": settings.drop_missing, "drop_duplicates": settings.drop_duplicates}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit has told them
        columns = fitted_columns(meta, settings.columns)
        grouped = group_rows(table.file, columns, labels=isinstance(meta, LabelsPrior), **how)
        tasks = exports.as_coded(meta, grouped.tasks, table.name)
    return LoadedPrior(meta, file, table.name, 0, tasks, grouped.dates, settings, table)


def _sinusoid() -> str:
    problem, lines = Sinusoid(deviation=0.25), ["task,environment,x,y"]
    groups = {"source": problem.source_tasks(25, 5, rng=0), "target": problem.target_tasks(8, 5, rng=1)}
    for name, tasks in groups.items():
        for i, (x, y) in enumerate(tasks):
            lines += [f"{name[0]}{i + 1:02d},{name},{a:.4f},{b:.4f}" for a, b in zip(x[:, 0], y, strict=True)]
    return "\n".join(lines) + "\n"
