"""The report: one HTML file that opens offline, with claims, figures and the commands that made them."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from metaprior.plots.style import as_bytes
from metaprior_studies.reproduction.accuracy_picture import draw_fig4
from metaprior_studies.reproduction.claims import SCOPE, Claim
from metaprior_studies.reproduction.comparisons import FAILS, HOLDS, MIN_DRAWS, UNDECIDED, Comparison, signed
from metaprior_studies.reproduction.pictures import draw_fig1, draw_fig2, draw_fig3, draw_fig5
from metaprior_studies.reproduction.regime_picture import draw_regime
from metaprior_studies.reproduction.tables import auto_table
from metaprior_studies.results_store import write_file
from metaprior_studies.schema import AUTO

CAPTIONS = {
    "fig1": "Figure 1. Test error against the deviation of the target from the source, alpha = beta = 0.5.",
    "fig2": "Figure 2. Predictions on one test task of the first draw, deviation 0.5, alpha = beta = 0.2.",
    "fig3": "Figure 3. Test error against the share of source tasks, alpha = beta, deviation 0.75.",
    "fig4": "Figure 4. Few-shot accuracy against alpha, beta = 0.5, minus that of PACOH on the target tasks alone, "
    "draw by draw, in points.",
    "fig5": "Figure 5. Test error against the weight of the source tasks, beta = 0.4, deviation 0.75.",
    "regime": "Left: the best weight of the source tasks. Right: its gain over training on the target tasks alone, in "
    "percent of RMSE; n.s.: its 95% interval includes zero.",
}
PICTURES = {
    "fig1": draw_fig1,
    "fig2": draw_fig2,
    "fig3": draw_fig3,
    "fig4": draw_fig4,
    "fig5": draw_fig5,
    "regime": draw_regime,
}
BANDS = "Lines are means over draws, bands are their 95% intervals."
TITLE = "Reproduction of the paper's five figures"
INTRODUCTION = (
    "The paper claims that a prior for small tasks is better if it is learned from many tasks of another environment "
    "and a few of the target environment than if it is learned from the few alone. This report reproduces its five "
    "experiments and judges each of its claims by a rule: whether it holds, by how much, and where. Schemes are "
    "compared on the same tasks, draw by draw. Brackets are 95% bootstrap intervals over draws."
)
CHOSEN = (
    "WFEM with alpha chosen by cross-validation, minus the scheme in the column header. Lower RMSE and higher accuracy "
    "are better. A green edge marks intervals that are entirely better, a red edge those that are entirely worse. The "
    "best alpha in hindsight is chosen on the same draws that measure it, so no rule is expected to reach it."
)
SHORT = {  # the claims in at most 26 characters, for a terminal
    "C1": "better than target-only",
    "C2": "close to N target tasks",
    "C3": "comparable predictions",
    "C4": "equal at beta 0 and 1",
    "C5": "gap grows, better anyway",
    "C6": "best alpha about 0.2",
    "C7": "SVGD beats MAP",
    "C8": "bridges part of the gap",
}
BADGES = {HOLDS: "yes", FAILS: "no", UNDECIDED: "open"}

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--paper:#fff;--line:#d0d7de;--card:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--paper:#0d1117;--line:#30363d;--card:#161b22}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:68rem;padding:1rem;color:var(--ink);background:var(--paper);
font:1rem/1.55 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.2rem;margin-top:2.2rem}
figure{margin:1rem 0;padding:.6rem;background:#fff;color:#333;border:1px solid var(--line);border-radius:8px}
figure img{width:100%;height:auto;display:block}figcaption{font-size:.9rem;margin-top:.4rem}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:.8rem 0}
table{border-collapse:collapse;width:100%;font-size:.88rem;overflow-wrap:normal}
th,td{padding:.45rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{background:var(--card)}td.wide{min-width:15rem}td.middle{min-width:9rem}td.number{white-space:nowrap;font-variant-numeric:tabular-nums}
.badge{display:inline-block;padding:.1rem .5rem;border-radius:.8rem;white-space:nowrap;font-weight:600;color:#fff}
.yes{background:#116329}.no{background:#a40e26}.open{background:#57606a}
td.better{box-shadow:inset 4px 0 #1a7f37}td.worse{box-shadow:inset 4px 0 #cf222e}
code,pre{font-family:ui-monospace,monospace;font-size:.88rem}
pre{overflow-x:auto;padding:.6rem;background:var(--card);border-radius:8px}
@media(max-width:34rem){td.wide{min-width:11rem}.badge{white-space:normal}}
summary{cursor:pointer;font-weight:600}.soft{color:var(--soft);font-size:.9rem}
"""


def make_report(
    frames: dict[str, pd.DataFrame],
    claims: Sequence[Claim],
    provenance: Mapping[str, Mapping[str, Any]],
    pictures: Mapping[str, bytes],
    path: Path,
) -> None:
    """Write report.html, atomically, with all images embedded."""
    body = [
        f"<h1>{escape(TITLE)}</h1>",
        f"<p>{escape(INTRODUCTION)}</p>",
        _claims_section(claims),
        "<h2>The figures</h2>",
        *(_figure(study, pictures[study], provenance) for study in CAPTIONS if study in pictures and study != "regime"),
        _auto_section(auto_table(frames)),
        _regime_section(pictures, provenance),
        _details_section(claims),
        _provenance_section(provenance),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(TITLE)}</title><style>{STYLE}</style>"
    )
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"
    write_file(path, page.encode())


def render(frames: dict[str, pd.DataFrame]) -> dict[str, bytes]:
    """Draw the figure of every study that has results, as PNG."""
    return {study: as_bytes(draw(frames[study])) for study, draw in PICTURES.items() if study in frames}


def claims_rows(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    """Return rows for a terminal of 80 columns: id, claim, verdict, and the first difference behind the verdict."""
    rows = []
    for claim in claims:
        number = "".join(map(difference_text, _speaking(claim)[:1]))
        rows.append((claim.id, SHORT.get(claim.id, claim.statement[:26]), claim.verdict, number))
    return rows


def _speaking(claim: Claim) -> list[Comparison]:
    return [row for row in claim.comparisons if row.verdict == claim.verdict]


def difference_text(row: Comparison) -> str:
    """Format as '−0.031 [−0.044, −0.019]', or the number alone if it has no interval."""
    if math.isnan(row.low):
        return signed(row.difference)
    return f"{signed(row.difference)} [{signed(row.low)}, {signed(row.high)}]"


def _claims_section(claims: Sequence[Claim]) -> str:
    lines = []
    for claim in claims:
        speaking = _speaking(claim)
        place, number, draws = "", "", ""
        if speaking:
            more = f" (and {len(speaking) - 1} more)" if len(speaking) > 1 else ""
            place, number = f"{speaking[0].where}: {speaking[0].what}{more}", difference_text(speaking[0])
            draws = str(speaking[0].n_draws)
        words = f'{escape(claim.statement)}<div class="soft">{escape(claim.summary)}</div>'
        lines.append((escape(claim.id), words, _badge(claim.verdict), *map(escape, (place, number, draws))))
    head = ("", "claim", "verdict", "where", "difference [95%]", "draws")
    table = _table(head, lines, ("", "wide", "", "wide", "number", ""))
    least = min((row.n_draws for claim in claims for row in claim.comparisons), default=MIN_DRAWS)
    few = (
        f" Comparisons of fewer than {MIN_DRAWS} draws have no interval and are inconclusive."
        if least < MIN_DRAWS
        else ""
    )
    return f'<h2>The claims</h2>{table}<p class="soft">{escape(SCOPE)}{few}</p>'


def _figure(study: str, picture: bytes, provenance: Mapping[str, Mapping[str, Any]]) -> str:
    image = base64.b64encode(picture).decode()
    facts = provenance.get(study, {})
    draws = (
        f" {facts['draws']} draws." if "draws" in facts and study != "fig4" else ""
    )  # its panels have different numbers of draws
    caption = CAPTIONS[study] + ("" if study in ("fig2", "regime") else f" {BANDS}") + draws
    text = escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{image}"><figcaption>{text}</figcaption></figure>'


def _auto_section(rows: Sequence[Comparison]) -> str:
    """Return a table with a row per setting and a column per scheme that the chosen alpha is compared with."""
    if not rows:
        return ""
    named = [(row, *row.what.removeprefix(f"{AUTO} − ").rsplit(", ", 1)) for row in rows]
    others = list(dict.fromkeys(other for _, other, _ in named))
    lines, looks = [], []
    for where in dict.fromkeys(row.where for row in rows):
        found = {other: row for row, other, _ in named if row.where == where}
        metric = next(metric for row, _, metric in named if row.where == where)
        numbers = [difference_text(found[other]) if other in found else "" for other in others]
        lines.append([escape(text) for text in (where, metric, *numbers)])
        looks.append(
            ["", "", *(f"number {_sense(found[other], metric)}" if other in found else "" for other in others)]
        )
    head = ("setting", "metric", *(f"− {other}" for other in others))
    return f"<h2>Alpha chosen by cross-validation</h2><p>{escape(CHOSEN)}</p>" + _table(head, lines, looks)


def _regime_section(pictures: Mapping[str, bytes], provenance: Mapping[str, Mapping[str, Any]]) -> str:
    if "regime" not in pictures:
        return ""
    text = (
        "Where do source tasks help? The weight is chosen on one half of the draws and its gain is measured on the "
        "other half. If there is nothing to gain, the result is a small loss: the cost of choosing."
    )
    return f"<h2>The regime map</h2><p>{escape(text)}</p>" + _figure("regime", pictures["regime"], provenance)


def _details_section(claims: Sequence[Claim]) -> str:
    head = ("where", "what", "difference [95%]", "draws", "verdict")
    parts = ["<h2>All comparisons</h2>"]
    for claim in claims:
        if claim.comparisons:
            lines = [
                (*map(escape, (row.where, row.what, difference_text(row), str(row.n_draws))), _badge(row.verdict))
                for row in claim.comparisons
            ]
            table = _table(head, lines, ("middle", "wide", "number", "", ""))
            parts.append(f"<details><summary>{escape(claim.id)}: {len(lines)} comparisons</summary>{table}</details>")
    return "\n".join(parts)


def _provenance_section(provenance: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the time, device, commit and settings of every study, and the commands to run it again."""
    head = ("study", "draws", "time", "on", "commit", "versions", "settings")
    lines = []
    for study, facts in provenance.items():
        plain = (study, facts.get("draws", ""), _duration(facts.get("seconds")), facts.get("device", ""))
        versions, settings = (_mapping(facts.get(key, {})) for key in ("versions", "settings"))
        lines.append([escape(str(value)) for value in (*plain, facts.get("commit", ""), versions, settings)])
    commands = dict.fromkeys(str(facts["command"]) for facts in provenance.values() if "command" in facts)
    again = f"<p>To reproduce:</p><pre>{escape(chr(10).join(commands))}</pre>" if commands else ""
    return "<h2>How it was made</h2>" + again + _table(head, lines, ("", "", "number", "", "", "wide", "wide"))


def _table(head: Iterable[str], lines: Iterable[Iterable[str]], classes: Sequence[Any]) -> str:
    """Return a scrolling table. Cells are escaped already; `classes` are the CSS classes of a row, or of each row."""
    shown = [list(line) for line in lines]
    looks = classes if classes and not isinstance(classes[0], str) else [classes] * len(shown)
    rows = [
        "<tr>" + "".join(f'<td class="{look}">{cell}</td>' for cell, look in zip(line, kind, strict=True)) + "</tr>"
        for line, kind in zip(shown, looks, strict=True)
    ]
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _badge(verdict: str | None) -> str:
    return "" if verdict is None else f'<span class="badge {BADGES[verdict]}">{escape(verdict)}</span>'


def _sense(row: Comparison, metric: str) -> str:
    lower, higher = ("worse", "better") if metric == "accuracy" else ("better", "worse")
    return lower if row.high < 0.0 else higher if row.low > 0.0 else ""


def _mapping(entries: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in entries.items())


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
