"""`metaprior info`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from metaprior.checks import counted
from metaprior.cli.console import out, print_note, print_result, print_table, report_errors
from metaprior.cli.evaluate import print_held_out
from metaprior.cli.options import OUTPUT, AsJson, Prior, check_outputs, option, write_picture
from metaprior.tasks.splits import ContextRule

MAX_NAMED = 12  # classes
USED = "a random part is used: "
NUMBERS = {  # that `training` may have, in words
    "final_loss": "final loss",
    "parameters": "parameters",
    "particles": "particles",
    "particle_spread": "particle spread",
    "spread": "spread",
    "factor": "factor of the latent scale",
    "ratio": "ratio of the latent variance",
    "shrink": "shrinkage in contexts",
    "seconds": "seconds",
}
DOES = {
    "none": "do nothing",
    "shift": "shift the mean",
    "curved": "shift the mean along curves",
    "bend": "shift and bend the mean",
}
PARTS = ("kind", "input_dim", "n_members", "fitted", "parameters", "training", "report", "recognized")


def info(
    prior: Prior,
    plot: Annotated[Path | None, option("--plot", "Plot the comparison that chose alpha to this file.", OUTPUT)] = None,
    as_json: AsJson = False,
):
    """Show what a saved prior was fitted to, with which settings, and whether its source helped."""
    from metaprior.estimators.files import read_prior

    with report_errors(as_json):
        check_outputs([prior], None, plot)
        header = msgspec.to_builtins(read_prior(prior)[0])
        from metaprior.search.report import TransferReport  # after it: a refusal need not wait for this

        report = TransferReport.from_json(header["report"])
        facts = _facts(header, report.outputs)
        arguments = [(name, _as_python(value)) for name, value in header["parameters"].items()]
        plotted = plot is not None and plot_report(report, plot)
    if as_json:
        print_result({part: header.get(part) for part in PARTS})
        return
    print_table(("property", "value"), facts)
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


def conformal_words(n_tasks: int, n_folds: int, rule: ContextRule) -> str:
    """Return nominal and proven coverage of conformal intervals, the highest one, and what they were calibrated on."""
    from metaprior.predict.conformal import coverage_words, floored, highest_coverage

    given = "contexts of any size" if rule.size is None else f"{rule.words('reading')} of each as context"
    tasks = counted(n_tasks, "held-out target task")
    proven = (
        f"{coverage_words(n_tasks, n_folds)} for new tasks like those of the target, whether or not the model is right"
    )
    return f"{proven}; up to {floored(highest_coverage(n_tasks))}, from {tasks} in {n_folds} folds, {given}"


def class_words(classes: Sequence[Any] | None) -> str:
    """Return the number of classes that all tasks share, and the first of their names."""
    if classes is None:
        return "other classes in each task"
    names = [str(name) for name in classes]
    shown = names if len(names) <= MAX_NAMED else [*names[:MAX_NAMED], "others"]
    listed = f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"{len(names)} classes, {listed}"


def _as_python(value: Any) -> str:
    """Return a stored parameter as it is written in Python."""
    if isinstance(value, list):
        return f"[{', '.join(map(_as_python, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    if "own" in value:
        return f"custom: {value['own']}"
    if "mapping" in value:
        return f"{{{', '.join(f'{name!r}: {_as_python(each)}' for name, each in value['mapping'].items())}}}"
    return (
        f"{value['description']}({', '.join(f'{name}={_as_python(each)}' for name, each in value['fields'].items())})"
    )


def _facts(header: dict[str, Any], outputs: str) -> list[tuple[str, str]]:
    """Return names and values: of the data, the scaling, the result, and the versions of packages."""
    training = header["training"]
    fitted = header["fitted"]
    scaling, columns = training["scaling"], training.get("columns") or {}
    inputs = columns.get("x") or [f"input {i + 1}" for i in range(header["input_dim"])]
    levels = dict(enumerate(header.get("columns", {}).get("levels", ())))
    scales = list(zip(inputs, scaling["x_mean"], scaling["x_std"], strict=False))
    scales = [scale for i, scale in enumerate(scales) if not levels.get(i)][:8]
    if "classes_" not in fitted and header["parameters"].get("likelihood", "gaussian") == "gaussian":
        # of other likelihoods the scaling is that of a latent function, such as a log rate
        scales.append((columns.get("y") or "y", scaling["y_mean"], scaling["y_std"]))
    rows = [
        ("kind", header["kind"]),
        ("table", training.get("data") or ("-" if training.get("columns") else "none (fitted from arrays)")),
        *((f"column {name}", value) for name, value in columns.items() if value),
        *_kind_rows(header, inputs),
        *((f"environment {name}", counts) for name, counts in environment_rows(training, outputs)),
        *((f"{name}: mean, standard deviation", f"{mean:.4g}, {std:.4g}") for name, mean, std in scales),
        *([("labels", class_words(fitted["classes_"]))] if "classes_" in fitted else []),
        *((_spaced(name), value) for name, value in fitted.items() if isinstance(value, int | float | str)),
        ("priors averaged", header["n_members"]),
        ("tasks recognized by fitted_on", _recognized(header)),
        *_conformal_rows(header.get("conformal")),
        *((words, training[name]) for name, words in NUMBERS.items() if name in training),
        ("versions", [f"{name} {version}" for name, version in training["versions"].items()]),
    ]
    return [(name, _text(value)) for name, value in rows]


def _recognized(header: dict[str, Any]) -> str:
    """Return how many tasks of the fit the file recognizes, in words."""
    known = header.get("recognized")
    return "none: saved with --private" if known is None else f"{known['tasks']:,} of {known['of']:,}"


def _conformal_rows(stored: dict[str, Any] | None) -> list[tuple[str, str]]:
    if stored is None:
        return []
    rule = ContextRule(*stored["context"])
    return [("conformal intervals", conformal_words(stored["n_tasks"], len(stored["folds"]), rule))]


def _kind_rows(header: dict[str, Any], inputs: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the levels of categories, the covariates, and how much weight priors have that use them."""
    columns = header.get("columns", {"levels": [], "covariates": []})
    rows = [(f"levels of {name}", list(each)) for name, each in zip(inputs, columns["levels"], strict=False) if each]
    if columns["covariates"]:
        rows.append(("covariates", [inputs[i] for i in columns["covariates"]]))
    weights = header["training"].get("covariates", {})
    return rows + [(f"weight of priors where covariates {DOES[name]}", weight) for name, weight in weights.items()]


def _spaced(name: str) -> str:
    return name.rstrip("_").replace("_", " ")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
