"""The local server of the page: this machine only, behind a token, with limits on what it takes."""

import errno
import hmac
import json
import secrets
import sys
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from metaprior_app.messages import InvalidRequest, spoken
from metaprior.checks import MissingExtra
from metaprior.files import nan_to_none

HOST = "127.0.0.1"
FIRST_PORT, N_PORTS = 8460, 20
MAX_JSON = 2**20  # bytes
MAX_UPLOAD = 512 * 2**20
CHUNK = 2**20
TIMEOUT = 60.0  # seconds without a byte from a client
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": f"{NOTHING}; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# A report carries its own policy, which allows its inlined script and style by their digests.
REPORT_HEADERS = {**HEADERS, "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"}
SCRIPTS = ("base.js", "charts.js", "task_chart.js", "task_table.js", "new_task.js", "fit.js", "page.js")
STATIC = {
    "": ("index.html", "text/html; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    **{name: (name, "text/javascript; charset=utf-8") for name in SCRIPTS},
}


class PageServer(ThreadingHTTPServer):
    """A server of one page, whose state is a workspace."""

    daemon_threads = True
    allow_reuse_address = False  # a port in use must not be shared

    def __init__(self, workspace: Any, port: int):
        super().__init__((HOST, port), Handler)
        self.workspace, self.token = workspace, secrets.token_urlsafe(18)
        self.port = int(self.server_address[1])
        self.hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        self.static = {name: _read_static(file) for name, (file, _) in STATIC.items()}

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about clients that have gone; print everything else."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            traceback.print_exc()


def make_server(workspace: Any, port: int | None) -> PageServer:
    """Return a server at a port, or at the first that is free from FIRST_PORT on."""
    ports = range(FIRST_PORT, FIRST_PORT + N_PORTS) if port is None else [port]
    for each in ports:
        try:
            return PageServer(workspace, each)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    if port is not None:
        raise ValueError(f"--port {port} is in use, or not allowed. Leave it out to use the first that is free.")
    return PageServer(workspace, 0)  # any


class Handler(BaseHTTPRequestHandler):
    """Answers one request after another of a connection."""

    server: PageServer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT
    disable_nagle_algorithm = True  # else the body of an answer waits 40 ms for its headers to be acknowledged
    server_version, sys_version = "metaprior", ""

    def do_GET(self) -> None:
        """Answer with a file or with state."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Answer a request that changes state, or that has a body."""
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the address has the token in it."""

    def _answer(self, respond: Callable[[str, dict[str, str]], None]) -> None:
        """Check where a request comes from, answer it, and turn errors into JSON."""
        chunked = "Transfer-Encoding" in self.headers  # whose end would have to be read to be known
        self._body_left = -1 if chunked else _length(self.headers.get("Content-Length"))
        try:
            url = urlsplit(self.path)
            self._check_sender(url.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            respond(url.path.split("/", 2)[2], query)
        except InvalidRequest as error:
            self._send_json({"error": self.server.workspace.tidy(str(error))}, error.status)
        except (ValueError, OSError, MemoryError, MissingExtra) as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            said = self.server.workspace.tidy(spoken(error))
            self._send_json({"error": said or type(error).__name__}, 400)
        except Exception:
            traceback.print_exc()
            self._send_json({"error": "The server failed; its terminal shows why."}, 500)

    def _check_sender(self, path: str) -> None:
        """Raise unless a request comes from this page: by its token, its host, and its origin if it says one."""
        if self.headers.get("Host") not in self.server.hosts:
            raise InvalidRequest("This server answers to its own address only.", 403)
        given = "".join(path.split("/", 2)[1:2]).encode()
        if path.count("/") < 2 or not hmac.compare_digest(given, self.server.token.encode()):
            raise InvalidRequest("The address must have the token that `metaprior app` printed.", 403)
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        if origin is not None and origin.removeprefix("http://") not in self.server.hosts:
            raise InvalidRequest("Requests from other origins are refused.", 403)
        if site not in (None, "same-origin", "none"):
            raise InvalidRequest("Requests from other sites are refused.", 403)

    def _get(self, path: str, query: dict[str, str]) -> None:
        if path in STATIC:
            self._send(self.server.static[path], STATIC[path][1])
        elif path == "api/state":
            self._send_json(self.server.workspace.state())
        elif path == "api/progress":
            self._send_json(self.server.workspace.progress())
        elif path == "prior.safetensors":
            content = self.server.workspace.prior_file(query.get("alpha")).read_bytes()
            self._send(content, "application/octet-stream", "prior.safetensors")
        elif path == "report.html" and (file := self.server.workspace.report):
            self._send(file.read_bytes(), "text/html; charset=utf-8", headers=REPORT_HEADERS)
        else:
            raise InvalidRequest("There is nothing at this address.", 404)

    def _post(self, path: str, query: dict[str, str]) -> None:
        workspace = self.server.workspace
        uploads = {"api/table": workspace.upload, "api/context": workspace.read_context}
        actions = {
            "api/example": workspace.example,
            "api/format": workspace.reread,
            "api/fit": workspace.start_fit,
            "api/report": workspace.start_report,
            "api/stop": workspace.stop,
            "api/predict": workspace.predict,
            "api/tasks": workspace.training_tasks,
            "api/code": workspace.code,
        }
        files = {"predictions.csv": workspace.predictions_csv, "readings.csv": workspace.readings_csv}
        if path in uploads:
            self._check_type("application/octet-stream")
            self._send_json(uploads[path](query.get("name", ""), self._receive))
        elif path in actions:
            self._send_json(actions[path](self._read_json()))
        elif path in files:
            self._send(files[path](self._read_json()), "text/csv; charset=utf-8", path)
        else:
            raise InvalidRequest("There is nothing at this address.", 404)

    def _check_type(self, expected: str) -> None:
        """Raise unless the content is said to be of a type that forms of other sites cannot send."""
        if self.headers.get("Content-Type", "").partition(";")[0].strip() != expected:
            raise InvalidRequest(f"Content-Type must be {expected}.", 415)

    def _read_json(self) -> dict[str, Any]:
        self._check_type("application/json")
        self._check_length(MAX_JSON)
        content = self.rfile.read(self._body_left)
        self._body_left = 0
        try:
            request = json.loads(content)
            json.dumps(request, ensure_ascii=False).encode()  # raises for half of a surrogate pair
        except (ValueError, RecursionError):
            raise InvalidRequest("The request is not JSON in UTF-8.") from None
        if b"\\u0000" in content:
            raise InvalidRequest("The request has a NUL character.")
        if not isinstance(request, dict):
            raise InvalidRequest("The request must be a JSON object.")
        return request

    def _receive(self, path: Path) -> None:
        """Write the body of a request to a file."""
        self._check_length(MAX_UPLOAD)
        with open(path, "xb") as file:
            while self._body_left:
                part = self.rfile.read(min(CHUNK, self._body_left))
                if not part:
                    raise ConnectionAbortedError("the upload ended early")
                file.write(part)
                self._body_left -= len(part)

    def _check_length(self, most: int) -> None:
        if self._body_left < 0:
            raise InvalidRequest("Content-Length is missing or wrong.", 411)
        if self._body_left > most:
            larger = f"{self._body_left / 2**20:,.0f} MB, of at most {most / 2**20:,.0f} MB"
            raise InvalidRequest(
                f"The file or request is too large: {larger}. Use `metaprior fit` for larger tables.", 413
            )

    def _send_json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(nan_to_none(value), default=str).encode(), "application/json", status=status)

    def _send(
        self,
        content: bytes,
        kind: str,
        download: str | None = None,
        status: int = 200,
        headers: dict[str, str] = HEADERS,
    ) -> None:
        if self._body_left:  # of a refused request: what is left of its body would be taken for the next request
            self.close_connection = True
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if download is not None:
            self.send_header("Content-Disposition", f'attachment; filename="{download}"')
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)


def _length(given: str | None) -> int:
    """Return the length of a body, or -1 if it is missing or no number."""
    if given is None:
        return 0
    return int(given) if given.isascii() and given.isdigit() and len(given) < 16 else -1


def _read_static(name: str) -> bytes:
    return resources.files("metaprior_app").joinpath("static", name).read_bytes()
