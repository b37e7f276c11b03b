"""The sections of a report as HTML. Names, labels and notes come from outside: all are escaped."""

from html import escape
from typing import Any

from metaprior_app.report_html import Charts, date, number, paragraph, table
from metaprior.checks import counted
from metaprior.metrics import meaning_of

MAX_CLASSES = 12  # that are listed
LEGENDS = {
    "prediction": "Filled: readings given. Hollow: readings held back. Line and band: mean and 90% interval.",
    "scatter": "Predicted mean and 90% interval of each reading held back, against what was observed. On the dashed "
    "line both are the same.",
    "probabilities": "Lines: probabilities of the labels. Filled, below: labels given. Hollow: labels held back, at "
    "the probability that they were predicted with; the top is best.",
    "labels": "Labels held back, and what was predicted.",
}


def sections(facts: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the header and the body of a report, and the charts to draw in it."""
    charts = Charts()
    held_out = facts["held_out"]
    parts = [
        _section("Result", _summary(facts)),
        _section("Data", _data(facts, charts)),
        _section("What was compared", _comparison(facts["transfer"], charts)),
        _section("Calibration on held-out tasks", _calibration(facts, charts)),
    ]
    if held_out["examples"]:
        parts.append(_section("Predictions of held-out tasks", _examples(held_out["examples"], charts)))
    parts.append(_section("Settings", _settings(facts)))
    what = "labels" if facts["labels"] else "readings"
    head = f"<h1>A prior of {escape(str(facts['data']['columns']['y']))}</h1>"
    head += f'<p class="muted">fitted to the {what} of {escape(facts["source"])} by metaprior '
    head += f"{escape(facts['versions']['metaprior'])}</p>"
    script = "<noscript><p>Charts need JavaScript. All else can be read without.</p></noscript>"
    head += f'<p class="muted small">{escape(facts["contains"])}</p>'
    return f'<header class="bar">{head}</header>\n<main>\n{script}\n' + "\n".join(parts) + "\n</main>", charts.drawn


def _section(title: str, content: str) -> str:
    return f'<section class="panel"><h2>{escape(title)}</h2>\n{content}</section>'


def _summary(facts: dict[str, Any]) -> str:
    """Return the result in a few sentences and figures."""
    what = "labels" if facts["labels"] else "readings"
    of_target = f" of {facts['target']}" if facts["target"] else ""
    members, family = facts["prior"]["members"], facts["prior"]["family"]
    average = f"an average of {counted(members, 'prior')}, most of all of the family “{family}”"
    single = f"a prior of the family “{family}”"
    how = f"A new task{of_target} is predicted from a few of its {what} by {average if members > 1 else single}."
    noise = "" if facts["likelihood"] in (None, "gaussian") else f"Its likelihood is {facts['likelihood']}."
    return paragraph(facts["transfer"]["words"]) + paragraph(how, noise, _tested(facts)) + _figures(facts)


def _tested(facts: dict[str, Any]) -> str:
    """Return a sentence on held-out tasks."""
    held_out = facts["held_out"]
    if not held_out["scores"]:
        return ""
    (_, own), *others = held_out["scores"].items()
    on = f"On {counted(held_out['tasks'], 'held-out task')}"
    if facts["labels"]:
        name, best = min(others, key=lambda pair: pair[1]["log_loss"][0])
        pairs = [f"{each['accuracy'][0]:.0%} of the labels are predicted, with a log loss of" for each in (own, best)]
        numbers = [number(each["log_loss"][0]) for each in (own, best)]
        return f"{on} {pairs[0]} {numbers[0]}; by {name} in each task alone {pairs[1]} {numbers[1]}."
    than = ""
    if others:
        name, best = min(others, key=lambda pair: pair[1]["rmse"][0])
        than = f"; the best other model, the {name}, has {number(best['rmse'][0])}"
    inside = f"{own['coverage'][0]:.0%} of the readings lie inside the 90% interval"
    inside += " (whole numbers, which hold at least so much)" * bool(held_out["chart"].get("whole"))
    return f"{on} {inside}, and the root mean square error is {number(own['rmse'][0])}{than}."


def _figures(facts: dict[str, Any]) -> str:
    """Return the most important numbers, large."""
    environments, held_out = facts["data"]["environments"], facts["held_out"]
    outputs = "label" if facts["labels"] else "reading"
    n_tasks, n_samples = (sum(each[name] for each in environments) for name in ("tasks", "samples"))
    shown = [(f"{n_tasks:,}", f"tasks with {counted(n_samples, outputs)}")]
    if held_out["scores"] and facts["labels"]:
        own = held_out["scores"]["metaprior"]
        shown += [(f"{own['accuracy'][0]:.0%}", "accuracy on held-out tasks")]
        shown += [(number(own["log_loss"][0]), "log loss, nats per label")]
    elif held_out["scores"]:
        own = held_out["scores"]["metaprior"]
        shown += [(f"{own['coverage'][0]:.0%}", "inside the 90% interval")]
        shown += [(number(own["rmse"][0]), "root mean square error")]
    shown.append((f"{facts['seconds']:g} s", "to fit"))
    pairs = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for value, name in shown)
    return f'<dl class="figures">{pairs}</dl>'


def _data(facts: dict[str, Any], charts: Charts) -> str:
    """Return the environments, their ranges, and pictures of their tasks."""
    data, outputs = facts["data"], "labels" if facts["labels"] else "readings"
    environments = data["environments"]
    rows = [
        (_name(each, facts), f"{each['tasks']:,}", f"{each['samples']:,}", _sizes(each["size"]))
        for each in environments
    ]
    between = " (range)" * facts["with_data"]
    text = table(("environment", "tasks", outputs, f"{outputs} per task: median{between}"), rows)
    ends = ("smallest", "largest") if facts["with_data"] else ()
    text += table(("column", "environment", *ends, "mean", "standard deviation"), _ranges(facts), "", "two")
    if rows := _level_rows(facts):
        text += table(("category", "environment", "levels and how many rows have them"), rows, "", "words")
    if data["n_inputs"] > len(data["inputs"]):
        text += paragraph(f"The first {len(data['inputs'])} of {data['n_inputs']} inputs are listed.")
    if facts["labels"] and facts["with_data"]:
        text += _classes(facts)
    if data["sampled"]:
        drawn_from = f"up to {data['sampled']} tasks per environment, drawn at random"
        text += paragraph(f"Pictures, and ranges of stored tasks, are of {drawn_from}.")
    many = any("counts" in chart["given"] for chart in data["charts"])
    drawn = [charts.place(chart, escape(chart["name"])) for chart in data["charts"]]
    if drawn:
        about = "The darker, the more tasks have readings there." if many else "Each line is a task."
        drawn_along = data["charts"][0]["x"]["label"]
        first = ", the first input" * (drawn_along == data["inputs"][0]["name"])
        along = f" They are drawn along {drawn_along}{first}." if data["n_inputs"] > 1 else ""
        if "exposure" in data["columns"]:
            along += f" Counts are divided by their exposure, {data['columns']['exposure']}."
        more = len(environments) - len(drawn)
        rest = f" {counted(more, 'more environment')} not drawn." if more else ""
        text += f'<div class="grid wide">{"".join(drawn)}</div>' + paragraph(f"{about}{along}{rest}")
    return text


def _name(environment: dict[str, Any], facts: dict[str, Any]) -> str:
    return f"{environment['name']} (target)" if environment["name"] == facts["target"] else environment["name"] or "all"


def _sizes(size: list[Any]) -> str:
    least, median, most = size
    return number(median) + (f" ({least:,}–{most:,})" if least is not None else "")


def _ranges(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return smallest, largest, mean and spread of every column in every environment."""
    data, rows, shown = facts["data"], [], ("min", "max", "mean") if facts["with_data"] else ("mean",)
    columns = [(each["name"], i, each["dates"]) for i, each in enumerate(data["inputs"])]
    for name, i, dates in columns if facts["labels"] else [*columns, (data["columns"]["y"], None, False)]:
        for each in data["environments"]:
            spread = each["y"] if i is None else each["x"][i]
            if "levels" in spread:
                continue
            known = spread["mean"] is not None
            cells = (date(spread[key]) if dates and known else number(spread[key]) for key in shown)
            rows.append((name, _name(each, facts), *cells, number(spread["std"]) + " days" * (dates and known)))
    return rows


def _level_rows(facts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the levels of every category in every environment, the most common first."""
    rows = []
    for i, column in enumerate(facts["data"]["inputs"]):
        for each in facts["data"]["environments"]:
            levels = each["x"][i].get("levels")
            if levels is not None:
                more = len(levels) - MAX_CLASSES
                said = [f"{name} {count:,}" for name, count in levels[:MAX_CLASSES]] + [f"{more} more"] * (more > 0)
                rows.append((column["name"], _name(each, facts), ", ".join(said) or "–"))
    return rows


def _classes(facts: dict[str, Any]) -> str:
    """Return how often each class occurs in each environment."""
    environments = facts["data"]["environments"]
    counts = [dict(map(tuple, each["labels"])) for each in environments]
    totals = {name: sum(each.get(name, 0) for each in counts) for each_of in counts for name in each_of}
    listed = sorted(totals, key=lambda name: -totals[name])[:MAX_CLASSES]
    rows = [(name, *(f"{each.get(name, 0):,}" for each in counts)) for name in listed]
    text = table(("label", *(_name(each, facts) for each in environments)), rows)
    return text + (
        paragraph(f"{counted(len(totals) - len(listed), 'more label')}.") if len(totals) > len(listed) else ""
    )


def _comparison(transfer: dict[str, Any], charts: Charts) -> str:
    """Return the candidates, and the families of priors."""
    text = "".join(paragraph(transfer[name]) for name in ("verdict", "certificate") if transfer[name])
    if transfer["shares"]:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in transfer["shares"].items())
        text += paragraph(f"Weights of the environments, on average: {shares}.", transfer["score_words"])
    if transfer["chart"]:
        text += charts.place(transfer["chart"], "Dots: gains, with standard errors. Bars: weights in the average.")
    if transfer["rows"]:
        text += table(("settings", "robust score", "gain", "weight"), transfer["rows"])
    if transfer["families"]:
        order = sorted(transfer["families"].items(), key=lambda pair: -pair[1])
        text += "<h3>Families of priors</h3>" + paragraph(
            "The other part of a setting is a family: what tasks have in common, and how they differ. These were "
            "compared in the same way, and predictions are averaged over them."
        )
        text += table(("family", "weight"), [(name, f"{weight:.2f}") for name, weight in order])
    return text


def _calibration(facts: dict[str, Any], charts: Charts) -> str:
    """Return the scores on held-out tasks and their calibration."""
    held_out = facts["held_out"]
    text = paragraph(held_out["how"])
    if not held_out["scores"]:
        return text + (paragraph(facts["conformal"]) if facts["conformal"] else "")
    chart = held_out["chart"]
    names = list(held_out["scores"]["metaprior"])
    nothing = (None, None)  # other models have no conformal intervals
    rows = [(who, *(number(*score.get(name, nothing)) for name in names)) for who, score in held_out["scores"].items()]
    unit = f"the units of {facts['data']['columns']['y']}"
    meanings = [
        (
            name.replace("_", " "),
            meaning_of(name, facts["outputs"])
            .replace("the units of y", unit)
            .replace("the interval", "the 90% interval"),
        )
        for name in names
    ]
    text += table(("mean over tasks", *(name for name, _ in meanings)), rows)
    said = "; ".join(f"{name}: {meaning}" for name, meaning in meanings)
    text += f'<p class="small muted">{escape(said)}. ±: standard error over tasks.</p>'
    text += paragraph(*held_out["gains"]) if held_out["gains"] else ""
    text += paragraph(facts["conformal"], _conformal_scores(held_out)) if facts["conformal"] else ""
    captions = {
        "calibration": "Share of held-back readings inside intervals of each probability, averaged over tasks. On the "
        "dashed line intervals keep their promise; below it they are too narrow. Band: 90%, over tasks.",
        "reliability": "How often the predicted label was right, against its probability. On the dashed line "
        "probabilities keep their promise. Bars: 90% intervals; larger dots stand for more labels.",
    }
    if chart.get("whole"):
        captions["calibration"] += (
            " A whole number at the end of an interval counts in part: as much of it as the interval needs for its "
            "probability. (The coverage in the table is that of whole numbers, which hold more.)"
        )
    text += charts.place(chart, escape(captions[chart["kind"]]), "square")
    pairs = list(zip(chart["promised"], chart["actual"], strict=True))
    listed = table(("promised", "actual"), [(f"{promised:.0%}", f"{actual:.0%}") for promised, actual in pairs])
    return f"{text}<details><summary>The same as a table</summary>{listed}</details>"


def _conformal_scores(held_out: dict[str, Any]) -> str:
    """Return how conformal intervals do on held-out tasks."""
    own = held_out["scores"]["metaprior"]
    if "conformal_coverage" not in own:
        return "There are too few tasks to test those of nominally 90%."
    value, error = own["conformal_coverage"]
    inside = f"{100 * value:.3g}" + (f" ± {100 * error:.2g}" if error is not None else "")
    return f"On held-out tasks those of nominally 90% hold {inside}% of the readings."


def _examples(examples: list[dict[str, Any]], charts: Charts) -> str:
    """Return some held-out tasks, from best to worst predicted."""
    kind = examples[0]["kind"]
    whole = kind == "prediction" and examples[0]["y"].get("whole")
    legend = LEGENDS[kind] + " The band holds whole numbers: its edges are half a unit beyond them." * bool(whole)
    others = " Covariates, and the exposure of counts, are those of each task." * any(e.get("others") for e in examples)
    text = paragraph(f"{counted(len(examples), 'task')}, from the best predicted to the worst.", legend + others)
    drawn = []
    for example in examples:
        given = f"{example['n_given']} given"
        if "n_right" in example:
            result = f"{example['n_right']} of {example['n_held_back']} held back predicted"
        else:
            result = f"{example['n_inside']} of {example['n_held_back']} held back inside the band"
            result += f", RMSE {number(example['rmse'])}"
        about = f"{example['name']}: {given}, {result}"
        if kind == "labels":
            rows = [(observed, predicted, f"{probability:.0%}") for observed, predicted, probability in example["rows"]]
            names = ("observed", "predicted", "its probability")
            drawn.append(f"<div>{table(names, rows, about, 'two')}</div>")
            continue
        few = example.get("n_classes", 0) > len(example.get("classes", ()))
        more = f" {len(example['classes'])} of {example['n_classes']} labels are drawn." if few else ""
        at = f" At {escape(example['others'])}." if example.get("others") else ""
        drawn.append(
            charts.place(
                {**example, "title": about},
                f"<strong>{escape(example['name'])}</strong> {escape(given)}, {escape(result)}.{more}{at}",
            )
        )
    return text + f'<div class="grid">{"".join(drawn)}</div>'


def _settings(facts: dict[str, Any]) -> str:
    """Return arguments, columns, notes, the command line and versions."""
    text = "<h3>The same prior again</h3>" + f'<pre class="wrapped"><code>{escape(facts["command"])}</code></pre>'
    if facts["is_pipe"]:
        text += paragraph("The table came through a pipe. Pass the same on standard input.")
    rows = [(name, value, "yes" if value != default else "") for name, value, default in facts["settings"]]
    text += "<h3>Arguments</h3>" + table(("argument", "value", "differs from the default"), rows, "", "words")
    columns = facts["data"]["columns"]
    named = [(name, ", ".join(value) if isinstance(value, list | tuple) else value) for name, value in columns.items()]
    text += "<h3>Columns</h3>" + table(("role", "column"), named, "", "words")
    if facts["notes"]:
        text += "<h3>Notes of the fit</h3>" + "".join(f'<p class="note">{escape(note)}</p>' for note in facts["notes"])
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    took = f"The fit took {facts['seconds']:g} seconds, this report {facts['report_seconds']:g}."
    return text + "<h3>Versions and time</h3>" + paragraph(f"{versions}. {took}")
