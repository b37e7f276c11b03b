"""The pictures and the report, from the made-up results of test_claims."""

import base64
import dataclasses
import io
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.image import imread
from test_claims import make_fig1, make_fig4, make_frames

from metaprior_studies.reproduction.accuracy_picture import draw_fig4
from metaprior_studies.reproduction.claims import SCOPE, judge
from metaprior_studies.reproduction.comparisons import HOLDS, UNDECIDED
from metaprior_studies.reproduction.html_report import CAPTIONS, PICTURES, claims_rows, make_report, render
from metaprior_studies.reproduction.pictures import COLORS, draw_fig1, draw_fig3, draw_fig5
from metaprior_studies.reproduction.regime_picture import UNSURE, draw_regime
from metaprior_studies.results_store import ResultsError
from metaprior_studies.schema import FEW, FIGURES, GP, ORACLE_BAYES, POOLED, SCHEMES, WFEM

PANELS = {"fig1": 2, "fig2": 4, "fig3": 2, "fig4": 4, "fig5": 2, "regime": 6}  # the regime's with two color bars
FACTS = {
    "command": "metaprior reproduce all --draws 12",
    "seconds": 345.0,
    "device": "2 cores <of a laptop>",
    "versions": {"jax": "0.11.1", "numpy": "2.3.4"},
    "commit": "4139a74",
    "settings": {"n_tasks": 30, "deviations": (0.0, 0.5, 1.0)},
    "draws": 12,
}
VOID = {"meta", "img", "br"}


@pytest.fixture(scope="module")
def frames():
    return make_frames()


@pytest.fixture(scope="module")
def claims(frames):
    return judge(frames)


@pytest.fixture(scope="module")
def whole(frames, claims, tmp_path_factory):
    """The report of everything: its source, and as a parsed page."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metaprior.plots.style.DPI", 30)  # small images are written sooner
        page = page_of(frames, path, claims)
    return path.read_text(encoding="utf-8"), page


class Page(HTMLParser):
    """Tags that are opened and closed in turn, their attributes, and the text between them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page_of(frames, path, claims=None, facts=FACTS):
    judged = judge(frames) if claims is None else claims
    make_report(frames, judged, dict.fromkeys(frames, facts), render(frames), path)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page


@pytest.mark.parametrize("study", FIGURES)
def test_pictures(study, frames, tmp_path):
    figure = PICTURES[study](frames[study])
    assert len(figure.axes) == PANELS[study]
    figure.savefig(tmp_path / "picture.png", dpi=30)
    pixels = imread(tmp_path / "picture.png")
    assert pixels.std() > 0.02
    assert len(figure.legends) == (study != "regime")


@pytest.mark.parametrize("study", FIGURES)
def test_pictures_of_one_draw_with_a_diverged_run(study, frames):
    single = frames[study][frames[study]["draw"] == 0].copy()
    single.loc[single.index[0], "value"] = math.nan
    figure = PICTURES[study](single)
    figure.draw_without_rendering()
    assert len(figure.axes) == PANELS[study]
    assert any(axes.get_lines() or axes.texts for axes in figure.axes)


def test_schemes_look_the_same_everywhere(frames):
    assert set(COLORS) == set(SCHEMES)
    for draw, study in ((draw_fig1, "fig1"), (draw_fig5, "fig5")):
        lines = {line.get_label(): line for line in draw(frames[study]).axes[0].get_lines()}
        assert lines[WFEM].get_color() == COLORS[WFEM]
    pooled = [c for c in draw_fig1(frames["fig1"]).axes[0].containers if c.get_label() == POOLED]
    assert pooled[0].lines[0].get_marker() == "o"


def test_lines_are_means_over_draws():
    frame = make_fig1()
    line = next(line for line in draw_fig1(frame).axes[0].get_lines() if line.get_label() == WFEM)
    rows = frame[(frame["scheme"] == WFEM) & (frame["metric"] == "rmse")]
    np.testing.assert_allclose(line.get_ydata(), rows.groupby("deviation")["value"].mean())


def test_an_oracle_run_once_is_a_line_across(frames):
    lines = {line.get_label(): line for line in draw_fig3(frames["fig3"]).axes[0].get_lines()}
    np.testing.assert_array_equal(lines[ORACLE_BAYES].get_xdata(), [0.0, 1.0])


def test_a_distant_gp_does_not_squeeze_the_others():
    frame = make_fig1(wfem=(0.30, 0.31, 0.32))
    distant = (frame["scheme"] == GP) & (frame["metric"] == "nll")
    right = draw_fig1(frame.assign(value=frame["value"].where(~distant, 30.0))).axes[1]
    to_axes = right.transData + right.transAxes.inverted()
    height = to_axes.transform([(0.0, 0.0), (0.0, 1.0), (0.0, 30.0)])[:, 1]
    assert height[1] - height[0] > 0.2
    assert height[2] < 1.0


def test_figure_4_shows_paired_differences_on_the_same_axes():
    frame = make_fig4(data=("features", "features, default prior", "pixels"))
    panels = draw_fig4(frame).axes
    titles = [axes.get_title().split(":")[0] for axes in panels]
    assert titles == [f"{name}, {kind}" for kind in ("MAP", "SVGD") for name in dict.fromkeys(frame["data"])]
    assert len({axes.get_ylim() for axes in panels}) == 1
    line = next(line for line in panels[1].get_lines() if line.get_label() == WFEM)
    rows = frame[(frame["data"] == "features, default prior") & (frame["inference"] == "map")]
    rows = rows[rows["metric"] == "accuracy"].set_index("draw")
    few = rows.loc[rows["scheme"] == FEW, "value"]
    ours = rows[(rows["scheme"] == WFEM) & (rows["alpha"] == line.get_xdata()[3])]["value"]
    assert line.get_ydata()[3] == pytest.approx(100 * (ours - few).mean())
    assert "not meta-trained: -20" in panels[0].texts[0].get_text()  # far below the axis


def test_regime_map_writes_numbers_where_they_are_certain(frames):
    left, right = draw_regime(frames["regime"]).axes[:2]
    assert sorted(text.get_text() for text in left.texts) == ["0", "0", "0", "0.5"]
    gains = sorted(text.get_text() for text in right.texts)
    assert gains[0] in ("49", "50", "51")
    assert gains[1:] == [UNSURE] * 3


def test_report_is_whole(whole, claims):
    _, page = whole
    text = " ".join(page.text)
    for claim in claims:
        assert claim.id in text
        assert claim.statement in text
        assert claim.summary in text
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == len(FIGURES)
    for image in images:
        kind, data = image["src"].split(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")
        assert image["alt"]
    for caption in CAPTIONS.values():
        assert caption in text
    for fact in ("metaprior reproduce all --draws 12", "5.8 min", "2 cores <of a laptop>", "4139a74", "jax 0.11.1"):
        assert fact in text
    assert text.count("C7: 20 comparisons") == 1
    assert "Alpha chosen by cross-validation" in text


def test_report_fetches_nothing_and_fits_a_phone(whole):
    source, page = whole
    assert all(link.startswith("data:image/png") for link in page.links)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"url\(|@import|http", re.sub(r"base64,[^\"]*", "", source))
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert "prefers-color-scheme:dark" in source
    assert f'<span class="badge yes">{HOLDS}</span>' in source
    tables = source.count("<table>")
    assert source.count('<div class="scroll"><table>') == tables > 8


def test_text_is_escaped(frames, tmp_path):
    claim = judge({"fig1": frames["fig1"]})[0]
    nasty = "a < b & <script>alert('x')</script>"
    comparison = dataclasses.replace(claim.comparisons[0], where=nasty, what=nasty)
    claim = dataclasses.replace(claim, statement=nasty, summary=nasty, comparisons=(comparison,))
    facts = {**FACTS, "command": nasty, "device": nasty, "versions": {nasty: nasty}, "settings": {nasty: nasty}}
    page = page_of({"fig1": frames["fig1"]}, tmp_path / "report.html", [claim], facts)
    assert not any(tag == "script" for tag, _ in page.tags)
    assert " ".join(page.text).count(nasty) >= 8


def test_report_of_one_figure_and_of_none(tmp_path):
    page = page_of({"fig1": make_fig1(n_draws=3)}, tmp_path / "report.html")
    text = " ".join(page.text)
    assert sum(tag == "img" for tag, _ in page.tags) == 1
    assert "regime map" not in text
    assert "Figure 3 was not run." in text
    assert "fewer than 10 draws" in text
    assert SCOPE in text
    page_of({}, tmp_path / "empty.html")


def test_badges_carry_words(tmp_path):
    page_of({}, tmp_path / "report.html")
    assert f'<span class="badge open">{UNDECIDED}</span>' in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full_disk(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(ResultsError, match="No space"):
        make_report({}, judge({}), {}, {}, path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


def test_pictures_are_rendered_once_each(frames):
    pictures = render({"fig1": frames["fig1"], "fig2": frames["fig2"]})
    assert list(pictures) == ["fig1", "fig2"]
    height, width, _ = imread(io.BytesIO(pictures["fig1"])).shape
    assert width == pytest.approx(11 * 120, abs=2)
    assert height < width


def test_rows_fit_a_terminal(claims):
    for judged in (claims, judge({}), judge({"fig1": make_fig1(n_draws=1)})):
        rows = claims_rows(judged)
        assert [row[0] for row in rows] == [f"C{number}" for number in range(1, 9)]
        assert all(len(row) == 4 for row in rows)
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        assert sum(widths) + 3 * 4 + 1 <= 80
