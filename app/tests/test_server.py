"""Who may ask the page's server, and for what: tokens, hosts, origins, paths, sizes, and what is no HTTP at all."""

import json
import re
import socket
import subprocess

import pytest
from page_client import BYTES, JSON, serving

from metaprior_app import server as server_module
from metaprior_app.server import STATIC, make_server
from metaprior_app.workspace import Workspace

PAGE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORM = "application/x-www-form-urlencoded"
TABLE = b"task,x,y\na,1,2\na,2,3\nb,1,4\nb,2,5\n"


def check_headers(answer):
    """Every answer forbids what the page does not need, also where it refuses."""
    assert {name: answer.headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_the_page_its_files_and_its_state_are_served_with_headers_that_forbid_all_else(page):
    for name, (_, kind) in STATIC.items():
        answer = page.get(name)
        assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
        check_headers(answer)
    check_headers(page.get("api/state"))
    assert page.get("api/state").headers["Content-Type"] == JSON
    assert "python" not in page.get("").headers["Server"].lower()


def test_the_page_names_no_other_address(page):
    for name in STATIC:
        content = page.get(name).content.decode()
        found = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+", content)) - {"http://www.w3.org"}  # a namespace of SVG
        assert not {each for each in found if not each.startswith("//")}, name
        assert not re.search(r"(?:src|href)\s*=\s*[\"']//", content)
        assert "@import" not in content


@pytest.mark.parametrize("path", ["", "style.css", "page.js", "api/state", "api/progress", "prior.safetensors"])
def test_nothing_is_served_without_the_token(page, path):
    other = page.token[:-1] + ("A" if page.token[-1] != "A" else "B")
    wrong = [path, f"x/{path}", f"{other}/{path}", f"{page.token}x/{path}", f"{page.token[:-1]}/{path}"]
    wrong += [f"{page.token.swapcase()}/{path}", f"%00{page.token}/{path}", f"é/{path}".encode().decode("latin-1")]
    for each in wrong:
        line = f"GET /{each} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nConnection: close\r\n\r\n"
        received = page.send(line.encode("latin-1"))
        assert received.startswith(b"HTTP/1.1 403 "), each
        assert b"token" in received
        assert page.token.encode() not in received
    assert page.ask("GET", f"/{page.token}").status == 403  # the address ends with a slash


def test_every_server_has_a_token_of_its_own_that_nobody_guesses(page, tmp_path):
    with serving(tmp_path) as other:
        assert other.token != page.token
        assert min(len(page.token), len(other.token)) >= 22  # 128 bits
        assert page.ask("GET", f"/{other.token}/").status == 403


@pytest.mark.parametrize("path", ["api/example", "api/table", "api/stop", "predictions.csv"])
def test_nothing_is_changed_without_the_token(page, path):
    answer = page.ask("POST", f"/wrong/{path}", b'{"name": "patients"}', {"Content-Type": JSON})
    assert answer.status == 403
    check_headers(answer)
    assert page.state["table"] is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil:{port}", ""]
)
def test_another_host_is_refused_as_after_rebinding_of_a_name(page, host):
    given = host.format(port=page.port)
    assert page.get("", Host=given).status == 403
    assert page.post("api/example", {"name": "patients"}, Host=given).status == 403
    assert page.state["table"] is None
    assert page.get("", Host=f"localhost:{page.port}").status == 200


def test_a_request_without_a_host_is_refused(page):
    assert page.send(f"GET /{page.token}/ HTTP/1.0\r\n\r\n".encode()).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1:{port}", "null", "http://127.0.0.1:1", "file://"]
)
def test_another_origin_is_refused(page, origin):
    given = origin.format(port=page.port)
    answer = page.post("api/example", {"name": "patients"}, Origin=given)
    assert answer.status == 403
    assert "origin" in answer.error
    assert page.get("api/state", Origin=given).status == 403
    assert page.state["table"] is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_requests_that_browsers_mark_as_from_another_site_are_refused(page, site):
    assert page.get("", **{"Sec-Fetch-Site": site}).status == 403
    assert page.post("api/example", {"name": "patients"}, **{"Sec-Fetch-Site": site}).status == 403
    assert page.state["table"] is None


def test_what_the_page_itself_sends_is_answered(page):
    own = {"Origin": f"http://127.0.0.1:{page.port}", "Sec-Fetch-Site": "same-origin"}
    assert page.post("api/example", {"name": "patients"}, **own).status == 200
    assert page.get("", **{"Sec-Fetch-Site": "none"}).status == 200  # typed, or opened by `metaprior app`


@pytest.mark.parametrize("kind", [FORM, "text/plain", "multipart/form-data; boundary=x", "", BYTES])
def test_forms_of_other_sites_change_nothing(page, kind):
    answer = page.post("api/example", b'{"name": "patients"}', kind)
    assert answer.status == 415
    assert JSON in answer.error
    assert page.state["table"] is None


def test_a_table_is_not_taken_as_a_form(page):
    assert page.post("api/table?name=a.csv", TABLE, FORM).status == 415
    assert page.post("api/table?name=a.csv", TABLE, "text/plain").status == 415
    assert page.state["table"] is None
    assert page.post("api/example", b'{"name": "patients"}', f"{JSON}; charset=utf-8").status == 200


TRICKS = [
    "../..",
    "../../etc/passwd",
    "%2e%2e/%2e%2e/etc/passwd",
    "..%2f..%2fetc/passwd",
    "static/../server.py",
    "../server.py",
    "server.py",
    "static/page.js",
    "/etc/passwd",
    "//etc/passwd",
    "..\\..\\server.py",
    "page.js%00.css",
    "page.js/",
    "./page.js",
    "%2e/page.js",
    "index.html",
    "report.html",
    "prior-1.safetensors",
    "api/../style.css",
    "api",
    "api/nothing",
]


@pytest.mark.parametrize("path", TRICKS)
def test_paths_lead_nowhere_but_to_what_is_served(page, path):
    for method in ("GET", "POST"):
        line = f"{method} /{page.token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Type: {JSON}\r\n"
        received = page.send(f"{line}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
        status = int(received.split()[1])
        assert status in (400, 403, 404), received[:200]
        assert b"root:" not in received
        assert b"import" not in received


@pytest.mark.parametrize(
    "line",
    [
        "GET",
        "GET foo HTTP/1.1",
        "GET * HTTP/1.1",
        "GET http://127.0.0.1 HTTP/1.1",
        "GET ? HTTP/1.1",
        "GET http://[ HTTP/1.1",
        "GET / HTTP/9.9",
        "GET / HTTP/x",
        "GET /{token}/\0 HTTP/1.1",
        "GET /{token}/%zz HTTP/1.1",
        "POST api/table HTTP/1.1",
        "BREW /{token}/ HTTP/1.1",
        "PUT /{token}/ HTTP/1.1",
        "DELETE /{token}/ HTTP/1.1",
        "OPTIONS /{token}/ HTTP/1.1",
        "\x16\x03\x01 not HTTP",
        "A" * 70_000,
    ],
    ids=lambda line: line[:24].encode("unicode_escape").decode(),
)
def test_lines_that_no_browser_sends_are_refused_without_a_failure(page, line):
    request = f"{line.format(token=page.token)}\r\nHost: 127.0.0.1:{page.port}\r\nConnection: close\r\n\r\n"
    try:
        received = page.send(request.encode("latin-1"))
    except ConnectionError:  # closed before all was read
        received = b""
    assert b" 500 " not in received[:60]
    assert b" 200 " not in received[:60]
    assert page.get("").status == 200


def test_damaged_prior_files_are_refused_and_change_nothing(predicting, prior_file):
    page, whole = predicting(), prior_file("numbers").read_bytes()
    before = page.state
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["__metadata__"] = {}
    bare = json.dumps(header).encode()
    damaged = {
        "empty": b"",
        "cut": whole[:-10],
        "halved": whole[: len(whole) // 2],
        "header only": whole[:8],
        "no safetensors": b"PK\x03\x04" + bytes(100),
        "pickle": b"\x80\x04cos\nsystem\n(S'touch /tmp/metaprior-was-here'\ntR.",
        "huge header": b"\xff" * 8 + bytes(100),
        "text": b"task,x,y\na,1,2\n",
        "no metadata": len(bare).to_bytes(8, "little") + bare + whole[8 + size :],
    }
    for name, content in damaged.items():
        answer = page.upload("api/table", "prior.safetensors", content)
        assert answer.status == 400, name
        assert answer.error
    assert page.state == before
    assert page.upload("api/table", "prior.safetensors", whole).status == 200


@pytest.mark.parametrize(
    "name",
    [
        "../../x.csv",
        "/etc/x.csv",
        "..\\..\\x.csv",
        "<script>alert(1)</script>.csv",
        "a/b\0c.csv",
        "-x.csv",
        "?.csv",
        "x" * 300 + ".csv",
        "ü 表.csv",
    ],
)
def test_names_of_uploads_stay_inside_the_folder(page, tmp_path, name):
    answer = page.upload("api/table", name, TABLE)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == JSON
    assert answer.json["table"]["name"] == name
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 1
    assert written[0].resolve().is_relative_to((tmp_path / "page").resolve())
    assert written[0].name.endswith(".csv")
    assert not set(written[0].name) & set("<>/\\\0")


@pytest.mark.parametrize("name", ["", ".csv", "x.exe", "x.csv.exe", "x", "..", "x.html", "x.pkl"])
def test_other_files_are_refused_by_name(page, name):
    answer = page.upload("api/table", name, TABLE)
    assert answer.status == 400
    assert "not a table" in answer.error
    assert page.state["table"] is None


def test_uploads_over_the_limit_are_refused_before_they_are_sent(page, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_UPLOAD", 1000)
    start = (
        f"POST /{page.token}/api/table?name=a.csv HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Type: {BYTES}\r\n"
    )
    received = page.send(f"{start}Content-Length: 1001\r\n\r\n".encode(), half_closed=False)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"too large" in received
    assert not list(page.workspace.folder.iterdir())
    fits = TABLE + b"b,3,6\n" * 160
    assert len(fits) <= 1000
    assert page.upload("api/table", "a.csv", fits).status == 200


def test_json_over_the_limit_is_refused(page, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_JSON", 100)
    answer = page.post("api/example", {"name": "patients", "more": "x" * 100})
    assert answer.status == 413
    assert page.post("api/example", {"name": "patients"}).status == 200


def test_an_upload_that_ends_early_leaves_nothing(page):
    start = (
        f"POST /{page.token}/api/table?name=a.csv HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Type: {BYTES}\r\n"
    )
    page.send(f"{start}Content-Length: 1000\r\n\r\n".encode() + TABLE)
    assert page.state["table"] is None
    assert not list(page.workspace.folder.iterdir())


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "+5", "0x10", " ", "9" * 30, "5, 5", "٣"])
def test_a_length_that_is_no_number_is_refused_and_ends_the_connection(page, length):
    for path, kind in (("api/example", JSON), ("api/table?name=a.csv", BYTES)):
        start = f"POST /{page.token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Type: {kind}\r\n"
        second = f"GET /{page.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n"
        received = page.send(f"{start}Content-Length: {length}\r\n\r\n{second}".encode())
        assert received.startswith(b"HTTP/1.1 41"), received[:100]
        assert received.count(b"HTTP/1.1") == 1, "the body was taken for a request"


def test_without_a_length_there_is_no_content(page):
    start = f"POST /{page.token}/api/example HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Type: {JSON}\r\n"
    received = page.send(f"{start}Connection: close\r\n\r\n".encode())
    assert int(received.split()[1]) in (400, 411)


def test_chunks_are_not_taken_for_the_next_request(page):
    start = f"POST /{page.token}/api/example HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Type: {JSON}\r\n"
    inside = f"GET /{page.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n"
    received = page.send(f"{start}Transfer-Encoding: chunked\r\n\r\n{inside}".encode())
    assert int(received.split()[1]) in (400, 411, 501)
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "refused", ["wrong token", "wrong type", "no such path", "other origin", "not JSON", "too large"]
)
def test_the_body_of_a_refused_request_does_not_poison_the_connection(page, monkeypatch, refused):
    if refused == "too large":
        monkeypatch.setattr(server_module, "MAX_JSON", 10)
    hidden = f"GET /{page.token}/api/state HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n"
    token = "wrong" if refused == "wrong token" else page.token
    path = "api/nothing" if refused == "no such path" else "api/example"
    kind = FORM if refused == "wrong type" else JSON
    origin = "http://evil.example" if refused == "other origin" else f"http://127.0.0.1:{page.port}"
    request = (
        f"POST /{token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Type: {kind}\r\nOrigin: {origin}\r\n"
    )
    received = page.send(f"{request}Content-Length: {len(hidden)}\r\n\r\n{hidden}".encode())
    assert received.startswith(b"HTTP/1.1 4")
    assert received.count(b"HTTP/1.1 ") == 1, "the body was answered as a request"


def test_a_connection_is_used_again_also_after_an_error(page):
    with page.connect() as connection:
        for _ in range(3):
            wrong = page.ask("POST", f"/{page.token}/api/example", b"{", {"Content-Type": JSON}, connection)
            assert (wrong.status, wrong.error) == (400, "The request is not JSON in UTF-8.")
            assert page.ask("GET", f"/{page.token}/api/state", connection=connection).status == 200


DEEP = 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"1",
        b'"text"',
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b"NaN",
        b"1e400",
        b"1" * 5000,
        b'{"name": "patients"} x',
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
    for name in ("coverage", "range", "fixed", "x", "y"):
        request = page.chart(readings=[{"x": [1.0], "y": 2.0}])
        text = json.dumps(request)
        places = {
            "coverage": ('"coverage": 0.9', f'"coverage": {value}'),
            "range": (f'"range": [{request["range"][0]}', f'"range": [{value}'),
            "fixed": (f'"fixed": [{request["fixed"][0]}', f'"fixed": [{value}'),
            "x": ('"x": [1.0]', f'"x": [{value}]'),
            "y": ('"y": 2.0', f'"y": {value}'),
        }
        assert places[name][0] in text
        answer = page.post("api/predict", text.replace(*places[name]).encode())
        if value.endswith("1e308"):  # finite, though no chart has it
            assert answer.status in (200, 400)
            continue
        assert answer.status == 400, (name, value, answer.content[:300])
        assert name in answer.error


def test_this_machine_only(page):
    """Other addresses of this machine, through which other machines come, do not answer."""
    assert page.server.server_address[0] == "127.0.0.1"
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    for address in [*(each for each in found if ":" not in each and not each.startswith("127.")), "127.0.0.2"]:
        with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
            socket.create_connection((address, page.port), timeout=2).close()


def test_a_port_in_use_is_left_for_the_next(monkeypatch, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(server_module, "FIRST_PORT", taken.getsockname()[1])
        with serving(tmp_path, None) as page:
            assert page.port > taken.getsockname()[1]
            assert page.get("").status == 200
        with pytest.raises(ValueError, match=f"--port {taken.getsockname()[1]} is in use"):
            make_server(Workspace(tmp_path), taken.getsockname()[1])
        monkeypatch.setattr(server_module, "N_PORTS", 1)
        with serving(tmp_path, None) as page:
            assert page.get("").status == 200  # at any other port


def test_two_servers_do_not_share_a_port(tmp_path):
    with serving(tmp_path, None) as first, serving(tmp_path, None) as second:
        assert first.port != second.port
