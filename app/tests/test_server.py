"""Who may ask the page's server, and for what: tokens, hosts, origins, paths, sizes, and what is no HTTP at all."""

import json
import re
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

import metaprior_app
from metaprior_app import server as server_module
from metaprior_app.server import listen
from page_client import BYTES, JSON, ServedPage, wait_until

PAGE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORM = "application/x-www-form-urlencoded"
TABLE = b"task,x,y\na,1,2\na,2,3\nb,1,4\nb,2,5\n"
STATIC = sorted(path.name for path in (Path(metaprior_app.__file__).parent / "static").iterdir())


def check_headers(answer):
    """Every answer forbids what the page does not need, also where it refuses."""
    assert {name: answer.headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("name", ["", *STATIC])
def test_the_page_and_its_files_name_no_other_address_and_forbid_all_else(page, name):
    answer = page.get(name)
    kind = {"js": "text/javascript", "css": "text/css", "": "text/html"}[name.rpartition(".")[2]]
    assert (answer.status, answer.headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
    check_headers(answer)
    content = answer.content.decode()
    assert not re.findall(r"https?://(?!www\.w3\.org)|@import", content)  # a namespace of SVG
    assert not re.search(r"(?:src|href)\s*=\s*[\"']//", content)
    if name == "":
        assert set(re.findall(r'(?:src|href)="([^"]+\.(?:js|css))"', content)) == {*STATIC} - {"report.js"}


def test_the_state_has_the_headers_and_nothing_says_what_serves_it(page, served):
    check_headers(page.get("api/state"))
    assert page.get("api/state").headers["Content-Type"] == JSON
    assert "Server" not in served.get("").headers


@pytest.mark.parametrize("path", ["", "style.css", "page.js", "api/state", "api/progress", "prior.safetensors"])
def test_nothing_is_served_without_the_token(page, path):
    other = page.token[:-1] + "A"
    wrong = [path, f"x/{path}", f"{other}/{path}", f"{page.token}x/{path}", f"{page.token[:-1]}/{path}"]
    wrong += [f"{page.token.swapcase()}/{path}", f"%00{page.token}/{path}", f"%C3%A9/{path}"]
    for each in wrong:
        answer = page.ask("GET", f"/{each}")
        assert answer.status == 403, each
        assert "token" in answer.error
        assert page.token not in answer.error
        check_headers(answer)
    assert page.ask("GET", f"/{page.token}").status == 403  # the address ends with a slash


@pytest.mark.parametrize("path", ["api/example", "api/table", "api/stop", "predictions.csv"])
def test_nothing_is_changed_without_the_token(page, path):
    answer = page.ask("POST", f"/wrong/{path}", b'{"name": "patients"}', {"Content-Type": JSON})
    assert answer.status == 403
    assert page.state["table"] is None


def test_every_server_has_a_token_of_its_own_that_nobody_guesses(served, tmp_path):
    with closing(ServedPage(tmp_path)) as other:
        assert other.token != served.token
        assert other.port != served.port
        assert min(len(served.token), len(other.token)) >= 22  # 128 bits
        assert served.ask("GET", f"/{other.token}/").status == 403


OWN = "http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("Host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil:{port}", ""]),
        ("Origin", ["http://evil.example", "https://127.0.0.1:{port}", "null", "http://127.0.0.1:1", "file://"]),
        ("Sec-Fetch-Site", ["cross-site", "same-site", "nonsense"]),
    ],
)
def test_other_hosts_origins_and_sites_are_refused(page, header, values):
    """As after rebinding of a name, and as browsers mark requests of other sites."""
    for value in values:
        given = {header: value.format(port=page.port)}
        for answer in (page.get("api/state", **given), page.post("api/example", {"name": "patients"}, **given)):
            assert answer.status == 403, value
            assert answer.error
            check_headers(answer)
    assert page.state["table"] is None


def test_what_the_page_itself_sends_is_answered(page):
    own = {"Origin": OWN.format(port=page.port), "Sec-Fetch-Site": "same-origin"}
    assert page.post("api/example", {"name": "patients"}, **own).status == 200
    assert page.get("", **{"Sec-Fetch-Site": "none"}).status == 200  # typed, or opened by `metaprior app`
    assert page.get("", Host=f"localhost:{page.port}").status == 200


@pytest.mark.parametrize("kind", [FORM, "text/plain", "multipart/form-data; boundary=x", ""])
def test_forms_of_other_sites_change_nothing(page, kind):
    for path, content in (("api/example", b'{"name": "patients"}'), ("api/table?name=a.csv", TABLE)):
        answer = page.post(path, content, kind)
        assert answer.status == 415
        assert "Content-Type must be" in answer.error
    assert page.state["table"] is None
    assert page.post("api/example", b'{"name": "patients"}', f"{JSON}; charset=utf-8").status == 200


TRICKS = [
    "../..",
    "../../etc/passwd",
    "%2e%2e/%2e%2e/etc/passwd",
    "..%2f..%2fetc/passwd",
    "../server.py",
    "..%2fserver.py",
    "server.py",
    "static/page.js",
    "/etc/passwd",
    "//etc/passwd",
    "%2f%2fetc/passwd",
    "..\\..\\server.py",
    "page.js%00.css",
    "page.html",
    "report.html",
    "prior-1.safetensors",
    "api",
    "api/nothing",
]


@pytest.mark.parametrize("path", TRICKS)
def test_paths_lead_nowhere_but_to_what_is_served(served, path):
    for method in ("GET", "POST"):
        line = f"{method} /{served.token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Type: {JSON}\r\n"
        received = served.send(f"{line}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
        assert int(received.split()[1]) in (400, 403, 404, 405), received[:200]
        assert b"root:" not in received
        assert b"import" not in received


@pytest.mark.parametrize(
    "line",
    [
        "GET",
        "GET foo HTTP/1.1",
        "GET * HTTP/1.1",
        "GET http://[ HTTP/1.1",
        "GET / HTTP/x",
        "GET /{token}/\0 HTTP/1.1",
        "POST api/table HTTP/1.1",
        "BREW /{token}/ HTTP/1.1",
        "DELETE /{token}/ HTTP/1.1",
        "\x16\x03\x01 not HTTP",
        "A" * 70_000,
    ],
    ids=lambda line: line[:24].encode("unicode_escape").decode(),
)
def test_lines_that_no_browser_sends_are_refused_without_a_failure(served, line):
    request = f"{line.format(token=served.token)}\r\nHost: 127.0.0.1:{served.port}\r\nConnection: close\r\n\r\n"
    try:
        received = served.send(request.encode("latin-1"))
    except ConnectionError:  # closed before all was read
        received = b""
    assert b" 500 " not in received[:60]
    assert b" 200 " not in received[:60]
    assert served.get("").status == 200


def test_damaged_prior_files_are_refused_and_change_nothing(predicting, prior_file):
    page, whole = predicting(), prior_file("numbers").read_bytes()
    before = page.state
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["__metadata__"]["header"] = "[" * 10_000
    crafted = json.dumps(header).encode()
    for content in (b"", whole[:100], bytes(flipped), len(crafted).to_bytes(8, "little") + crafted + whole[8 + size :]):
        answer = page.upload("api/table", "p.safetensors", content)
        assert answer.status == 400
        assert "p.safetensors" in answer.error
    assert page.state == before


NAMES = [
    "../../../tmp/x.csv",
    "/etc/x.csv",
    "..\\..\\x.csv",
    "<script>alert(1)</script>.csv",
    "a/b\0c.csv",
    "-x.csv",
    "?.csv",
    "x" * 300 + ".csv",
    "ü 表.csv",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_uploads_stay_inside_the_folder(page, tmp_path, name):
    answer = page.upload("api/table", name, TABLE)
    assert (answer.status, answer.json["table"]["name"]) == (200, name)
    [written] = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written.resolve().is_relative_to(page.workspace.folder.resolve())
    assert written.name.endswith(".csv")
    assert not set(written.name) & set("<>/\\\0")


@pytest.mark.parametrize("name", ["", ".csv", "x.exe", "x.csv.exe", "x", "..", "x.html", "x.pkl"])
def test_other_files_are_refused_by_name(page, name):
    answer = page.upload("api/table", name, TABLE)
    assert answer.status == 400
    assert "not a table" in answer.error
    assert page.state["table"] is None
    assert not list(page.workspace.folder.iterdir())


# -------------------------------------------------------------------- sizes and bodies


def start_of(page, path, kind=JSON, **headers):
    given = {"Host": f"127.0.0.1:{page.port}", "Content-Type": kind, **headers}
    lines = [f"POST /{page.token}/{path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def test_what_is_too_large_is_refused_before_it_is_sent(served, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_UPLOAD", 1000)
    monkeypatch.setattr(server_module, "MAX_JSON", 100)
    upload = start_of(served, "api/table?name=a.csv", BYTES, **{"Content-Length": "1001"})
    for request in (upload, start_of(served, "api/example", **{"Content-Length": "101"})):
        received = served.send(request)
        assert received.startswith(b"HTTP/1.1 413 ")
        assert b"too large" in received
    chunks = b"%x\r\n%s\r\n" % (600, b"x" * 600) * 2  # and no end
    received = served.send(start_of(served, "api/table?name=a.csv", BYTES, **{"Transfer-Encoding": "chunked"}) + chunks)
    assert received.startswith(b"HTTP/1.1 413 "), "the size is counted where it is not said"
    assert not list(served.workspace.folder.iterdir())
    fits = TABLE + b"b,3,6\n" * 160
    assert len(fits) <= 1000
    assert served.upload("api/table", "a.csv", fits).status == 200


def test_an_upload_that_ends_early_leaves_nothing(served):
    served.send(start_of(served, "api/table?name=a.csv", BYTES, **{"Content-Length": "1000"}) + TABLE, half_closed=True)
    wait_until(lambda: not list(served.workspace.folder.iterdir()))
    assert served.state["table"] is None


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "+5", "0x10", "9" * 30, "٣"])
def test_a_length_that_is_no_number_is_refused_and_ends_the_connection(served, length):
    second = f"GET /{served.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode()
    for path, kind in (("api/example", JSON), ("api/table?name=a.csv", BYTES)):
        received = served.send(start_of(served, path, kind, **{"Content-Length": length}) + second)
        assert received.startswith(b"HTTP/1.1 4"), received[:100]
        assert received.count(b"HTTP/1.1") == 1, "the body was taken for a request"


@pytest.mark.parametrize(
    "refused", ["wrong token", "wrong type", "no such path", "other origin", "not JSON", "too large"]
)
def test_the_body_of_a_refused_request_is_not_taken_for_a_request(served, monkeypatch, refused):
    if refused == "too large":
        monkeypatch.setattr(server_module, "MAX_JSON", 10)
    hidden = f"GET /{served.token}/api/state HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode()
    path = "api/nothing" if refused == "no such path" else "api/example"
    origin = "http://evil.example" if refused == "other origin" else served.origin
    kind = FORM if refused == "wrong type" else JSON
    start = start_of(served, path, kind, Origin=origin, **{"Content-Length": len(hidden)})
    received = served.send(
        (start.replace(served.token.encode(), b"wrong") if refused == "wrong token" else start) + hidden
    )
    assert received.startswith(b"HTTP/1.1 4")
    assert received.count(b"HTTP/1.1 ") == 1, "the body was answered as a request"


DEEP = 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'"text"',
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b"NaN",
        b"1e400",
        b"1" * 5000,
        b'{"name": "patients"} x',
        b'{"name": "\\ud800"}',
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
@pytest.mark.parametrize("path", ["api/example", "api/fit", "api/predict", "predictions.csv"])
def test_what_is_no_json_object_is_refused(page, path, body):
    answer = page.post(path, body)
    assert answer.status == 400
    assert "JSON" in answer.error
    check_headers(answer)


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e400", "1e308", "-1e308", "true", "null", '"1"', "[]", "1" + "0" * 400]
)
def test_numbers_that_are_none_are_refused_by_name(predicting, value):
    page = predicting()
    request = page.chart(readings=[{"x": [1.0], "y": 2.0}])
    text = json.dumps(request)
    places = {
        "coverage": ('"coverage": 0.9', f'"coverage": {value}'),
        "range": (f'"range": [{request["range"][0]}', f'"range": [{value}'),
        "fixed": (f'"fixed": [{request["fixed"][0]}', f'"fixed": [{value}'),
        "x": ('"x": [1.0]', f'"x": [{value}]'),
        "y": ('"y": 2.0', f'"y": {value}'),
    }
    for name, change in places.items():
        assert change[0] in text
        answer = page.post("api/predict", text.replace(*change).encode())
        if value.endswith("1e308"):  # finite, though no chart has it
            assert answer.status in (200, 400)
            continue
        assert answer.status == 400, (name, value, answer.content[:300])
        assert name in answer.error


def test_an_error_that_nobody_expected_is_told_without_its_words(page, monkeypatch):
    monkeypatch.setattr(page.workspace, "stop", lambda: {}["secret"])
    page.client._transport.raise_server_exceptions = False
    answer = page.post("api/stop")
    assert (answer.status, answer.error) == (500, "The server failed; its terminal shows why.")


# -------------------------------------------------------------------- ports


def test_this_machine_only(served):
    """Other addresses of this machine, through which other machines come, do not answer."""
    assert served.socket.getsockname()[0] == "127.0.0.1"
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    for address in [*(each for each in found if ":" not in each and not each.startswith("127.")), "127.0.0.2"]:
        with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
            socket.create_connection((address, served.port), timeout=2).close()


def test_a_port_in_use_is_left_for_the_next(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(server_module, "FIRST_PORT", port)
        with closing(listen(None)) as found:
            assert found.getsockname()[1] > port
        with pytest.raises(ValueError, match=f"--port {port} is in use"):
            listen(port)
        monkeypatch.setattr(server_module, "N_PORTS", 1)
        with closing(listen(None)) as found:
            assert found.getsockname()[1] != port  # any other
