"""Random JSON for every address of the page: refused in one line or answered, and never a failure of the server."""

import json
import sys
from contextlib import closing
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from metaprior_app.fits import Fit
from page_client import Page

POSTED = ["example", "format", "fit", "report", "stop", "predict", "tasks", "code"]
ROUTES = [*(f"api/{name}" for name in POSTED), "predictions.csv", "readings.csv"]

# Not shrunk: requests are slow to repeat, and what was sent is in the failure.
QUICK = settings(suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])

numbers = st.one_of(
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([1e308, -1e308, 5e-324, 2**53, 10**400, -0.0]),
    st.floats(0.0, 10.0),
)
words = st.one_of(
    st.text(max_size=5), st.sampled_from(["auto", "\0", "\ud800", "\n", "0", "x", "y", "task", "-h", "--"])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


def mostly(likely):
    """Mostly what the page would send, lest requests are refused at the first field."""
    return st.one_of(likely, likely, likely, likely, likely, values)


one_number = mostly(st.floats(0.0, 10.0))
readings = mostly(
    st.lists(
        st.fixed_dictionaries(
            {"x": mostly(st.lists(one_number, min_size=1, max_size=1)), "y": st.one_of(one_number, st.integers(0, 1))}
        ),
        max_size=3,
    )
)
chart = st.fixed_dictionaries(
    {
        "readings": readings,
        "coverage": mostly(st.floats(0.5, 0.99)),
        "axis": mostly(st.just(0)),
        "range": mostly(st.tuples(st.floats(0.0, 4.0), st.floats(5.0, 9.0))),
        "fixed": mostly(st.lists(one_number, min_size=1, max_size=1)),
    },
    optional={
        "alpha": st.sampled_from(["auto", None, "x"]),
        "samples": mostly(st.booleans()),
        "map": mostly(st.booleans()),
        "second": mostly(st.just(0)),
        "second_range": mostly(st.tuples(st.floats(0.0, 4.0), st.floats(5.0, 9.0))),
        "class": mostly(st.integers(0, 2)),
        "classes": mostly(st.lists(words, min_size=2, max_size=3)),
    },
)
roles = st.fixed_dictionaries(
    {"task": mostly(st.just(["task"])), "x": mostly(st.just(["x"])), "y": mostly(st.just("y"))},
    optional=dict.fromkeys(("environment", "target", "kind", "drop_missing", "drop_duplicates"), values),
)
formats = st.dictionaries(st.sampled_from(["sep", "decimal", "encoding"]), values)
bodies = {
    "api/fit": roles,
    "api/format": formats,
    "api/tasks": st.fixed_dictionaries({"axis": values}),
    "api/example": st.fixed_dictionaries({"name": values}),
}


def likely_body(route):
    return bodies.get(route, chart)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with closing(Page(tmp_path_factory.mktemp("page"))) as page:
        yield page


class NoFit(Fit):
    """Instead of a process: what is asked for here must not run."""

    status, error, started, ended = "failed", "no fit", 0.0, 1.0
    result = progress = None

    def __init__(self, arguments, finish=None):
        for each in arguments:
            each.encode("utf-8", "surrogateescape")  # as a process would have it
            if "\0" in each:
                raise ValueError("embedded null byte")

    def stop(self):
        pass

    wait = stop


def check(answer):
    """Answered, or refused in one line."""
    assert answer.status < 500, answer.content
    if answer.status != 200:
        assert 400 <= answer.status < 500
        assert len(answer.error) < 1000


@pytest.fixture(scope="module", params=["nothing", "numbers", "labels", "own labels"])
def served_prior(request, tmp_path_factory, prior_file):
    """A page with a prior of some kind and a table, so that requests come far; or with nothing."""
    with closing(Page(tmp_path_factory.mktemp("page"))) as page:
        if request.param != "nothing":
            page.open_prior(prior_file(request.param))
            table = b"task,x,y\na,1,2\na,2,3\nb,1,4\nb,2,5\n"
            assert page.upload("api/table", "table.csv", table).status == 200
        yield page


@pytest.fixture(scope="module", autouse=True)
def _no_fits():
    """Let no request start a process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("metaprior_app.") and hasattr(module, "Fit"):
                patch.setattr(module, "Fit", NoFit)
        yield


@settings(QUICK, max_examples=100)
@given(data=st.data())
def test_any_json_is_answered_or_refused_in_one_line(served_prior, data):
    route = data.draw(st.sampled_from(ROUTES))
    body = data.draw(st.one_of(likely_body(route), likely_body(route), values))
    prior = served_prior.workspace.prior
    if isinstance(body, dict) and "revision" not in body and prior is not None:
        body["revision"] = prior.revision
    check(served_prior.post(route, json.dumps(body).encode()))


@settings(QUICK, max_examples=60)
@given(path=st.text(max_size=30), method=st.sampled_from(["GET", "POST"]))
def test_any_path_is_answered_or_refused(served, path, method):
    answer = served.ask(method, f"/{served.token}/{quote(path)}")
    assert answer.status in ((200,) if method == "GET" and path == "" else (200, 400, 404, 405, 409, 415))


@settings(QUICK, max_examples=60)
@given(
    content=st.one_of(st.binary(max_size=200), st.text(alphabet='ab,;\n"01.é\0\r', max_size=60).map(str.encode)),
    ending=st.sampled_from(
        ["csv", "tsv", "parquet", "csv.gz", "csv.bz2", "csv.xz", "csv.zst", "csv.zip", "safetensors", "exe"]
    ),
)
def test_any_file_is_opened_or_refused(served, prior_file, content, ending):
    served.open_prior(prior_file("numbers"))
    for path in ("api/context", "api/table"):
        check(served.upload(path, f"table.{ending}", content))


def test_questions_before_there_is_anything(page):
    for route in ROUTES:
        answer = page.post(route, {})
        assert answer.status in ((200,) if route == "api/stop" else (400, 409)), route
        if answer.status != 200:
            assert answer.error
    assert page.get("prior.safetensors").status == 409
    assert page.upload("api/context", "a.csv", b"x,y\n1,2\n").status == 409
