"""How fast the local page answers: clicks, memory and first paint.

python studies/benchmarks/page_speed.py

Starts `metaprior app` with the bundled example's prior, as users do, and prints milliseconds per click (the server's
own and over HTTP), the memory of the server's process before and after 1,000 clicks, and, where playwright and chromium
are installed, the time from the server's address to the first paint.
"""

import argparse
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path

import numpy as np

ROLES = ["--task=patient", "--x=hours", "--y=heart_rate", "--environment=hospital", "--target=south"]
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
PAINT = "() => performance.getEntriesByType('paint').map((each) => [each.name, each.startTime])"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clicks", type=int, default=200)
    parser.add_argument("--more", type=int, default=1000, help="clicks between two looks at the memory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prior = Path(folder) / "prior.safetensors"
        table = resources.files("metaprior").joinpath("datasets", "example", "patients.csv")
        metaprior = [sys.executable, "-m", "metaprior"]
        subprocess.run([*metaprior, "fit", str(table), *ROLES, f"--out={prior}"], check=True, stdout=subprocess.DEVNULL)
        began = time.perf_counter()
        command = [*metaprior, "app", str(prior), "--no-browser"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            address = re.findall(r"http://\S+", process.stdout.readline())[0]
            print(f"server up after {time.perf_counter() - began:.2f} s")
            measure(address, process.pid, arguments)
        finally:
            process.terminate()
            process.wait()


def measure(address, pid, arguments):
    paint(address)
    rng = np.random.default_rng(0)
    first, *_ = click(address, 1, rng)
    print(f"first click: {first[0]:.1f} ms of the server, {first[1]:.1f} ms over HTTP")
    took = np.array(click(address, arguments.clicks, rng))
    for name, values in zip(("server", "HTTP"), took.T, strict=True):
        middle, high, most = np.percentile(values, [50, 95, 100])
        print(f"{arguments.clicks} clicks, {name}: median {middle:.1f} ms, 95% {high:.1f} ms, slowest {most:.1f} ms")
    before = resident(pid)
    click(address, arguments.more, rng)
    after = resident(pid)
    print(f"memory: {before:.1f} MB, after {arguments.more} clicks {after:.1f} MB ({after - before:+.1f} MB)")


def click(address, n, rng):
    """Send a changed context n times; return milliseconds of the server and over HTTP."""
    _, _, host, token, _ = address.split("/")
    connection = http.client.HTTPConnection(host)
    connection.request("GET", f"/{token}/api/state")
    prior = json.loads(connection.getresponse().read())["prior"]
    ranges = [[each["low"], each["high"]] for each in prior["inputs"]]
    fixed = [each["typical"] for each in prior["inputs"]]
    request = {"revision": prior["revision"], "coverage": 0.9, "axis": 0, "range": ranges[0], "fixed": fixed}
    took, readings = [], []
    for i in range(n):
        if i % 20 == 0:
            readings = []
        readings.append({"x": [rng.uniform(*ranges[0])], "y": rng.uniform(*prior["y_range"])})
        began = time.perf_counter()
        body = json.dumps({**request, "readings": readings})
        connection.request("POST", f"/{token}/api/predict", body, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        took.append((answer["milliseconds"], 1e3 * (time.perf_counter() - began)))
    connection.close()
    return took


def resident(pid):
    """Return the memory of a process in MB."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def paint(address):
    """Print when a browser has painted the page, counted from the moment it is sent to the address."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("first paint: not measured, without playwright and chromium (`make test-browser` installs them)")
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER)
        page = browser.new_page()
        began = time.perf_counter()
        page.goto(address, wait_until="commit")
        page.locator("#task-panel").wait_for()
        shown = time.perf_counter() - began
        entries = dict(page.evaluate(PAINT))
        first = entries.get("first-contentful-paint", float("nan"))
        print(f"first paint: {first:.0f} ms after the request; the chart's panel is there after {1e3 * shown:.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()
