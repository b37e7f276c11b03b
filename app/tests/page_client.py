"""A page served in this process, a client that speaks HTTP to it, and small tables and priors for it."""

import json
import socket
import threading
import time
from contextlib import suppress
from importlib import resources
from pathlib import Path
from urllib.parse import quote

import httpx2
import numpy as np
import pandas as pd
from starlette.testclient import TestClient
from typer.testing import CliRunner

from metaprior.cli import app as command_line
from metaprior_app.server import make_app, make_server
from metaprior_app.workspace import Workspace

JSON, BYTES = "application/json", "application/octet-stream"
PATIENTS = Path(str(resources.files("metaprior").joinpath("datasets", "example", "patients.csv")))
PATIENT_ROLES = {
    "task": ["patient"],
    "x": ["hours"],
    "y": "heart_rate",
    "environment": "hospital",
    "target": "south",
}


class Answer:
    """What the server answered."""

    def __init__(self, response):
        self.status, self.headers, self.content = response.status_code, response.headers, response.content

    @property
    def json(self):
        return json.loads(self.content)

    @property
    def error(self):
        """The message of a refused request, which must be one line."""
        (message,) = self.json.values()
        assert list(self.json) == ["error"]
        assert message.strip() == message != ""
        assert "\n" not in message
        assert "Traceback" not in message
        return message


class Page:
    """A page without a network, and requests to it. What it does not expect is raised here."""

    def __init__(self, folder, port=8460, token="t" * 24):
        self.workspace, self.port, self.token = Workspace(Path(folder)), port, token
        self.origin = f"http://127.0.0.1:{port}"
        self.client = TestClient(make_app(self.workspace, port, token), base_url=self.origin)

    def close(self):
        self.workspace.close()

    def ask(self, method, path, body=None, headers=None):
        """Send a request to a whole path, with the token or without; return the answer."""
        return Answer(self.client.request(method, path, content=body, headers=headers))

    def get(self, path, **headers):
        return self.ask("GET", f"/{self.token}/{path}", headers=headers)

    def post(self, path, body=None, kind=JSON, **headers):
        """Post JSON, or content that is given as bytes."""
        content = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        return self.ask("POST", f"/{self.token}/{path}", content, {"Content-Type": kind, **headers})

    def upload(self, path, name, content):
        return self.post(f"{path}?name={quote(name)}", content, BYTES)

    @property
    def state(self):
        return self.get("api/state").json

    @property
    def progress(self):
        return self.get("api/progress").json

    def open_prior(self, path):
        self.workspace.open_path(Path(path))

    def chart(self, **changed):
        """Return a request for the chart of a new task, which the page would send."""
        prior = self.state["prior"]
        ranges = [[each["low"], each["high"]] for each in prior["inputs"]]
        return {
            "revision": prior["revision"],
            "readings": [],
            "coverage": 0.9,
            "axis": 0,
            "range": ranges[0],
            "fixed": [each["typical"] for each in prior["inputs"]],
            **changed,
        }

    def wait_for_fit(self, seconds=60.0):
        """Return the state of the fit once it has ended."""
        wait_until(lambda: self.progress["fit"]["status"] != "running", seconds)
        return self.progress["fit"]


def wait_until(condition, seconds=20.0):
    """Wait until a condition holds; fail if it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


class ServedPage(Page):
    """A page at a port of this machine, served in a thread."""

    def __init__(self, folder, port=None):
        super().__init__(folder)
        self.address, self.server, self.socket = make_server(self.workspace, port)
        self.origin, self.token = self.address.rstrip("/").rsplit("/", 1)
        self.port = self.socket.getsockname()[1]
        self.client = httpx2.Client(base_url=self.origin, timeout=20)
        self._thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self._thread.start()
        wait_until(lambda: self.server.started)

    def close(self):
        self.client.close()
        self.server.should_exit = True
        self._thread.join()
        super().close()

    def send(self, data, half_closed=False):
        """Send bytes as they are; return all that comes back until the server closes the connection, or is silent."""
        received = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as client, suppress(TimeoutError):
            client.sendall(data)
            if half_closed:
                client.shutdown(socket.SHUT_WR)
            while part := client.recv(65536):
                received += part
                client.settimeout(0.3)
        return received


def fit(table, out, *options):
    """Fit a prior to a table by the command line, in this process."""
    arguments = ["fit", str(table), *options, f"--out={out}", "--json"]
    result = CliRunner().invoke(command_line, arguments)
    assert result.exit_code == 0, result.output
    return Path(out)


def csv(frame, **options):
    return frame.to_csv(index=False, **options).encode()


def readings_table(n_tasks=6, n_readings=5, n_inputs=1, seed=0):
    """Tasks of numbers: a sinusoid along the first input, each task at a level of its own."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 10.0, (n_tasks * n_readings, n_inputs)).round(3)
    level = np.repeat(rng.normal(size=n_tasks), n_readings)
    slope = x[:, 1:].sum(axis=1) / 5.0
    y = (np.sin(x[:, 0]) + slope + level + 0.1 * rng.normal(size=len(x))).round(4)
    names = ["x"] if n_inputs == 1 else [f"x{i + 1}" for i in range(n_inputs)]
    tasks = np.repeat([f"task {i + 1}" for i in range(n_tasks)], n_readings)
    return pd.DataFrame({"task": tasks, **dict(zip(names, x.T, strict=True)), "y": y})


def labels_table(n_tasks=6, n_readings=8, words=("low", "high"), seed=0):
    """Tasks of labels: one word below a place of the task's own, the other above."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 10.0, (n_tasks, n_readings)).round(3), axis=1)
    place = 5.0 + rng.normal(size=(n_tasks, 1))
    place = np.clip(place, x[:, 1:2], x[:, -2:-1])  # both words in every task
    label = np.where(x <= place, *words)
    tasks = np.repeat([f"task {i + 1}" for i in range(n_tasks)], n_readings)
    return pd.DataFrame({"task": tasks, "x": x.ravel(), "word": label.ravel()})


def counts_table(n_tasks=8, n_readings=6, seed=0, exposure=False):
    """Tasks of counts of 2 to 20 or so, of each day if there is a column of days."""
    rng = np.random.default_rng(seed)
    hour = rng.uniform(0.0, 10.0, n_tasks * n_readings).round(3)
    level = np.repeat(0.4 * rng.normal(size=n_tasks), n_readings)
    days = rng.integers(1, 6, len(hour)) if exposure else np.ones(len(hour), int)
    calls = rng.poisson(days * np.exp(1.5 + level + 0.5 * np.sin(hour)))
    tasks = np.repeat([f"task {i + 1}" for i in range(n_tasks)], n_readings)
    return pd.DataFrame({"task": tasks, "hour": hour, **({"days": days} if exposure else {}), "calls": calls})


def ranks_table(n_tasks=8, n_readings=6, seed=0):
    """Tasks of scores from 3 to 7, all of which are seen."""
    table = readings_table(n_tasks, n_readings, seed=seed)
    score = np.clip(np.round(5.0 + 1.5 * table.pop("y")), 3, 7).astype(int)
    score[:5] = [3, 4, 5, 6, 7]
    return table.assign(score=score)


def kinds_table(n_tasks=10, n_readings=6, seed=0):
    """Tasks of numbers along the second column; the first is a category, the last two are covariates."""
    rng = np.random.default_rng(seed)
    n = n_tasks * n_readings
    brand = rng.choice(["acme", "bolt", "<i>cog</i>"], n, p=[0.2, 0.6, 0.2])
    age, sex = rng.uniform(40.0, 80.0, n_tasks).round(1), rng.choice(["female", "male"], n_tasks)
    sex[:2] = ["female", "male"]
    hours = rng.uniform(0.0, 10.0, n).round(3)
    level = np.repeat(rng.normal(size=n_tasks) + age / 10.0, n_readings)
    y = (np.sin(hours) + 0.5 * (brand == "bolt") + level + 0.1 * rng.normal(size=n)).round(4)
    tasks = np.repeat([f"task {i + 1}" for i in range(n_tasks)], n_readings)
    of_tasks = {"age": np.repeat(age, n_readings), "sex": np.repeat(sex, n_readings)}
    return pd.DataFrame({"task": tasks, "brand": brand, "hours": hours, **of_tasks, "y": y})


RESPONSES = {
    "counts": (counts_table, ["--x=hour", "--y=calls", "--likelihood=poisson"]),
    "rates": (
        lambda: counts_table(exposure=True),
        ["--x=hour", "--y=calls", "--likelihood=negative-binomial", "--set=exposure=days"],
    ),
    "ranks": (ranks_table, ["--x=x", "--y=score", "--likelihood=ordinal"]),
    "outliers": (readings_table, ["--x=x", "--y=y", "--likelihood=student-t"]),
    "kinds": (kinds_table, ["--x=brand", "--x=hours", "--y=y", "--covariates=age", "--covariates=sex"]),
    "brands": (kinds_table, ["--x=brand", "--y=y"]),  # no number to draw along
}


def make_prior(folder, kind):
    """Fit one of the priors that tests share; return its file."""
    if kind == "patients":
        roles = [f"--{name}={value}" for name, given in PATIENT_ROLES.items() for value in np.atleast_1d(given)]
        return fit(PATIENTS, folder / "patients.safetensors", *roles, f"--report={folder / 'patients.html'}")
    if kind in RESPONSES:
        make, options = RESPONSES[kind]
        make().to_csv(folder / f"{kind}.csv", index=False)
        return fit(folder / f"{kind}.csv", folder / f"{kind}.safetensors", "--task=task", *options)
    tables = {
        "numbers": lambda: readings_table(),
        "two inputs": lambda: readings_table(n_tasks=8, n_readings=6, n_inputs=2),
        "labels": lambda: labels_table(),
        "own labels": lambda: labels_table(),
    }
    table = folder / f"{kind}.csv"
    frame = tables[kind]()
    frame.to_csv(table, index=False)
    roles = ["--task=task", *(f"--x={name}" for name in frame.columns[1:-1]), f"--y={frame.columns[-1]}"]
    more = {"labels": [f"--report={folder / 'labels.html'}"], "own labels": ["--set", "shared_classes=false"]}
    return fit(table, folder / f"{kind}.safetensors", *roles, *more.get(kind, []))
