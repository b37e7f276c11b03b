"""`metaprior info`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from metaprior.checks import counted
from metaprior.cli.console import out, print_note, print_result, print_table, report_errors
from metaprior.cli.options import AsJson, Prior, check_outputs, write_picture
from metaprior.cli.scores import print_held_out

OF_TRAINING = ("temperature_", "dtype_", "best_step_")  # results of gradient training
MAX_NAMED = 12  # classes
USED = "a random part is used: "
NUMBERS = {  # that `training` may have, in words
    "parameters": "parameters",
    "particles": "particles",
    "particle_spread": "particle spread",
    "spread": "spread",
    "factor": "factor of the latent scale",
    "ratio": "ratio of the latent variance",
    "shrink": "shrinkage in contexts",
    "seconds": "seconds",
}
PARTS = ("kind", "input_dim", "n_members", "fitted", "parameters", "training", "report")


def info(
    prior: Prior,
    plot: Annotated[Path | None, typer.Option(help="Plot the comparison that chose alpha to this file.")] = None,
    as_json: AsJson = False,
):
    """Show what a saved prior was fitted to, with which settings, and whether its source helped."""
    from metaprior.estimators.persistence import read_prior
    from metaprior.files import InvalidFile

    with report_errors(as_json):
        check_outputs([prior], None, plot)
        header, _ = read_prior(prior)
        from metaprior.estimators.arguments import GRADIENT_ONLY  # after it: a refusal need not wait for these
        from metaprior.search.report import TransferReport

        try:
            report = TransferReport.from_json(header["report"])
            unused = (*GRADIENT_ONLY, *OF_TRAINING) if header.get("engine") == "hierarchical" else ()
            facts = _facts(header, report.outputs, unused)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidFile(f"{prior} is damaged: {error!r} in its header.") from None
        plotted = plot is not None and plot_report(report, plot)
    if as_json:
        print_result({name: header[name] for name in PARTS})
        return
    print_table(("property", "value"), facts)
    arguments = [(name, json.dumps(value)) for name, value in header["parameters"].items() if name not in unused]
    print_table(("argument", "value"), arguments)
    out.print(str(report), soft_wrap=True)
    training = header["training"]
    if training.get("held_out"):
        print_held_out(training["held_out"], (training.get("columns") or {}).get("y"), report.outputs)
    if plotted:
        out.print(f"Wrote {plot}.")


def plot_report(report: Any, path: Path) -> bool:
    """Write the plot of the settings that were compared; return whether there were any."""
    if report.score is None:
        print_note(f"no settings were compared to choose alpha: {path} is not written.")
        return False
    write_picture(path, report.plot())
    return True


def environment_rows(training: dict[str, Any], outputs: str) -> list[tuple[str, str]]:
    """Return every environment with the number of its tasks and outputs, or all tasks if there is one environment.

    If the fit has used a random part of them, the numbers of these follow.
    """

    def words(counts: dict[str, int], prefix: str = "") -> str:
        n_tasks, n_outputs = counts[f"{prefix}tasks"], counts[f"{prefix}samples"]
        return f"{counted(n_tasks, 'task')}, {counted(n_outputs, outputs.removesuffix('s'))}"

    of_environments = {
        name: words(counts) + (f" ({USED}{words(counts, 'used_')})" if "used_tasks" in counts else "")
        for name, counts in training["environments"].items()
        if counts["tasks"]
    }
    if len(of_environments) == 1:
        return [("all", count) for count in of_environments.values()]
    return [(name + " (target)" * (name == training["target"]), counts) for name, counts in of_environments.items()]


def class_words(classes: Sequence[Any] | None) -> str:
    """Return the number of classes that all tasks share, and the first of their names."""
    if classes is None:
        return "other classes in each task"
    names = [str(name) for name in classes]
    shown = names if len(names) <= MAX_NAMED else [*names[:MAX_NAMED], "others"]
    listed = f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"{len(names)} classes, {listed}"


def _facts(header: dict[str, Any], outputs: str, unused: Sequence[str]) -> list[tuple[str, str]]:
    """Return names and values: of the data, the scaling, the result, and the versions of packages."""
    training = header["training"]
    fitted = {name: value for name, value in header["fitted"].items() if name not in unused}
    scaling, columns = training["scaling"], training.get("columns") or {}
    inputs = columns.get("x") or [f"input {i + 1}" for i in range(header["input_dim"])]
    scales = list(zip(inputs, scaling["x_mean"], scaling["x_std"], strict=False))[:8]
    if header["kind"] == "MetaGPRegressor":
        scales.append((columns.get("y") or "y", scaling["y_mean"], scaling["y_std"]))
    final_loss = training.get("final_loss", training.get("free_energy"))  # its name in files of earlier versions
    rows = [
        ("kind", header["kind"]),
        ("table", training.get("data") or "none (fitted from arrays)"),
        *((f"column {name}", value) for name, value in columns.items() if value),
        *((f"environment {name}", counts) for name, counts in environment_rows(training, outputs)),
        *((f"{name}: mean, standard deviation", f"{mean:.4g}, {std:.4g}") for name, mean, std in scales),
        *([("labels", class_words(fitted["classes_"]))] if "classes_" in fitted else []),
        *((_spaced(name), value) for name, value in fitted.items() if isinstance(value, int | float | str)),
        ("priors averaged", header["n_members"]),
        *([("final loss", final_loss)] if final_loss is not None else []),
        *((words, training[name]) for name, words in NUMBERS.items() if name in training),
        ("versions", [f"{name} {version}" for name, version in training["versions"].items()]),
    ]
    return [(name, _text(value)) for name, value in rows]


def _spaced(name: str) -> str:
    return name.rstrip("_").replace("_", " ")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
