"""The local server of the page: this machine only, behind a token, with limits on what it takes."""

import errno
import fcntl
import hmac
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metaprior import __version__
from metaprior.checks import MissingExtra
from metaprior.files import nan_to_none
from metaprior.likelihoods import LIKELIHOODS
from metaprior.terminal import unfinished
from metaprior_app.tables import InvalidRequest, spoken
from metaprior_app.workspace import Workspace

HOST = "127.0.0.1"
FIRST_PORT, N_PORTS = 8460, 20
MAX_JSON, MAX_UPLOAD = 2**20, 512 * 2**20  # bytes
HERE = Path(__file__).parent
JSON, BYTES = "application/json", "application/octet-stream"
NOTHING = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
POLICY = "Content-Security-Policy"
HEADERS = {
    POLICY: f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    f"{NOTHING}",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# The private folder of a page. Whether a page still runs is told by a lock on its folder, which the system drops when
# the process ends, however it does: a process number may be another's by then.
NAME = "metaprior-app"
PATTERN = re.compile(rf"\.{NAME}\.[0-9a-f]+\.part")
MARK = "folder-of-a-page"  # an empty file, made once the folder is locked: without it a page may be about to start
OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
EXPECTED = (HTTPException, ClientDisconnect, ValueError, OSError, MemoryError, MissingExtra)


class Answer(JSONResponse):
    """JSON, in which NaN is null."""

    def render(self, content: Any) -> bytes:
        return super().render(nan_to_none(content))


class Guard:
    """Refuses requests that do not come from this page, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: set[str], token: str):
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._problem(scope["path"], Headers(scope=scope))
        answer = self.app if refused is None else Answer({"error": refused}, 403)
        await answer(scope, receive, send_with_headers)

    def _problem(self, path: str, headers: Headers) -> str | None:
        """Return why a request is refused: its host, its token, or its origin if it says one."""
        if headers.get("Host") not in self.hosts:
            return "This server answers to its own address only."
        given = path.encode().split(b"/", 2)
        if len(given) < 3 or not hmac.compare_digest(given[1], self.token.encode()):
            return "The address must have the token that `metaprior app` printed."
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return "Requests from other origins are refused."
        return None if site in ("same-origin", "none") else "Requests from other sites are refused."


class Site:
    """The page, its files, and the answers of a workspace."""

    def __init__(self, workspace: Workspace):
        self.workspace, self.templates = workspace, Jinja2Templates(HERE / "templates")

    @property
    def routes(self) -> list[Route | Mount]:
        work = self.workspace
        posted = {
            "api/example": partial(self.act, work.example),
            "api/format": partial(self.act, work.reread),
            "api/fit": partial(self.act, work.start_fit),
            "api/report": partial(self.act, work.start_report),
            "api/predict": partial(self.act, work.predict),
            "api/tasks": partial(self.act, work.training_tasks),
            "api/code": partial(self.act, work.code),
            "api/stop": self.stop,
            "api/table": partial(self.upload, work.upload),
            "api/context": partial(self.upload, work.read_context),
            "predictions.csv": partial(self.table, work.predictions_csv),
            "readings.csv": partial(self.table, work.readings_csv),
        }
        return [
            Route("/", self.page),
            Route("/prior.safetensors", self.prior),
            Route("/report.html", self.report),
            Route("/api/state", partial(self.tell, work.state)),
            Route("/api/progress", partial(self.tell, work.progress)),
            *(Route(f"/{path}", endpoint, methods=["POST"]) for path, endpoint in posted.items()),
            Mount("/", StaticFiles(directory=HERE / "static")),
        ]

    async def page(self, request: Request) -> Response:
        known = {"version": __version__, "likelihoods": LIKELIHOODS}
        return self.templates.TemplateResponse(request, "page.html", known)

    async def prior(self, request: Request) -> Response:
        file = await self.run(self.workspace.prior_file, request.query_params.get("alpha"))
        return FileResponse(file, media_type=BYTES, filename="prior.safetensors")

    async def report(self, request: Request) -> Response:
        """Return the report, which carries a policy of its own: its inlined script and style by their digests."""
        if self.workspace.report is None:
            raise HTTPException(404)
        return FileResponse(self.workspace.report, media_type="text/html", headers={POLICY: NOTHING})

    async def tell(self, what: Callable[[], Any], request: Request) -> Response:
        return Answer(await self.run(what))

    async def act(self, act: Callable[[dict[str, Any]], Any], request: Request) -> Response:
        return Answer(await self.run(act, await read_json(request)))

    async def stop(self, request: Request) -> Response:
        """Stop the fit that runs. Without the lock, which the end of a fit may wait for."""
        await read_json(request)
        return Answer(await run_in_threadpool(self.workspace.stop))

    async def table(self, make: Callable[[dict[str, Any]], str], request: Request) -> Response:
        content, name = await self.run(make, await read_json(request)), request.url.path.rpartition("/")[2]
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="text/csv", headers=headers)

    async def upload(self, take: Callable[[Path, str], Any], request: Request) -> Response:
        path = self.workspace.new_upload()
        try:
            with open(path, "xb") as file:
                async for part in body(request, BYTES, MAX_UPLOAD):
                    file.write(part)
            return Answer(await self.run(take, path, request.query_params.get("name", "")))
        finally:
            path.unlink(missing_ok=True)

    async def run(self, act: Callable[..., Any], *arguments: Any) -> Any:
        def locked() -> Any:
            with self.workspace.lock:
                return act(*arguments)

        return await run_in_threadpool(locked)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Answer in one line what is wrong with a request, without the folders that uploads are kept in."""
        if isinstance(error, HTTPException):
            return Answer({"error": "There is nothing at this address."}, error.status_code)
        message = re.sub(rf"{re.escape(str(self.workspace.folder))}/[^/]+/", "", spoken(error))
        return Answer({"error": message}, getattr(error, "status", 400))

    async def fail(self, request: Request, error: Exception) -> Response:
        return Answer({"error": "The server failed; its terminal shows why."}, 500)


def make_app(workspace: Workspace, port: int, token: str) -> ASGIApp:
    site = Site(workspace)
    handlers: Any = {**dict.fromkeys(EXPECTED, site.refuse), Exception: site.fail}
    inside = Starlette(routes=[Mount(f"/{token}", routes=site.routes)], exception_handlers=handlers)
    return Guard(inside, {f"{name}:{port}" for name in (HOST, "localhost")}, token)


async def body(request: Request, kind: str, most: int) -> AsyncIterator[bytes]:
    """Yield the parts of the body of a request, of a type that forms of other sites cannot send."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip() != kind:
        raise InvalidRequest(f"Content-Type must be {kind}.", 415)
    size = int(request.headers.get("Content-Length", 0))
    received = 0
    if size <= most:
        async for part in request.stream():
            received += len(part)
            if received > most:
                break
            yield part
    if max(size, received) > most:
        found = f"The file or request is too large: more than {most / 2**20:,.0f} MB"
        raise InvalidRequest(f"{found}. Use `metaprior fit` for larger tables.", 413)


async def read_json(request: Request) -> dict[str, Any]:
    content = b"".join([part async for part in body(request, JSON, MAX_JSON)])
    try:
        asked = json.loads(content)
        json.dumps(asked, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    except (ValueError, RecursionError):
        raise InvalidRequest("The request is not JSON in UTF-8.") from None
    if b"\\u0000" in content:
        raise InvalidRequest("The request has a NUL character.")
    if not isinstance(asked, dict):
        raise InvalidRequest("The request must be a JSON object.")
    return asked


class Server(uvicorn.Server):
    """Leaves signals to the command, which ends at once."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(port: int | None) -> socket.socket:
    """Return a socket that listens at a port, or at the first that is free from FIRST_PORT on."""
    for each in [*range(FIRST_PORT, FIRST_PORT + N_PORTS), 0] if port is None else [port]:
        listening = socket.socket()
        try:
            listening.bind((HOST, each))
            listening.listen()
            return listening
        except OSError as error:
            listening.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise ValueError(f"--port {port} is in use, or not allowed. Leave it out to use the first that is free.")


def make_server(workspace: Workspace, port: int | None) -> tuple[str, Server, socket.socket]:
    """Return the address of a page, with its token, its server, and the socket that it is to listen at."""
    listening, token = listen(port), secrets.token_urlsafe(18)
    bound = listening.getsockname()[1]
    options: Any = {
        "log_config": None,
        "log_level": "error",
        "access_log": False,
        "server_header": False,
        "lifespan": "off",
        "ws": "none",
    }
    server = Server(uvicorn.Config(make_app(workspace, bound, token), **options))
    return f"http://{HOST}:{bound}/{token}/", server, listening


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that only this user can read, and remove it afterwards, with what other pages left behind."""
    parent = Path(tempfile.gettempdir())
    with suppress(OSError):  # where files may be made, but not listed
        for name in filter(PATTERN.fullmatch, os.listdir(parent)):
            with suppress(OSError):  # of another user, a link, gone meanwhile, or locked
                _remove_if_left(parent / name)
    with unfinished(parent / NAME) as path:
        os.mkdir(path, mode=0o700)
        descriptor = os.open(path, OPEN)  # held until the process ends
        try:
            with suppress(OSError):  # where a file system has no locks, nobody can take it for a leftover either
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                Path(path, MARK).touch()
            pages = Path(path, "page")
            pages.mkdir()
            yield pages
        finally:
            os.close(descriptor)


def _remove_if_left(path: Path) -> None:
    """Remove a folder unless it is not a folder of this user's, or the page that it belongs to runs."""
    descriptor = os.open(path, OPEN)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid() and MARK in os.listdir(descriptor):
            shutil.rmtree(path)
    finally:
        os.close(descriptor)


def serve(file: Path | None, port: int | None, started: Callable[[str], None]) -> None:
    """Serve a page until the process ends, with a table or a prior open; call `started` with its address."""
    with temporary_folder() as folder:
        workspace = Workspace(folder)
        if file is not None:
            workspace.open_path(file)
        address, server, listening = make_server(workspace, port)
        started(address)
        try:
            server.run([listening])
        finally:
            workspace.close()
