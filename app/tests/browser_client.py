"""A real browser that looks at the page, and what it saw: requests, errors, faults that axe-core finds."""

import io
import os
import re
import shutil
import time
from contextlib import contextmanager
from importlib import resources
from importlib.util import find_spec

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = [name for name in ("playwright", "axe_playwright_python") if find_spec(name) is None]
MISSING += [] if CHROMIUM else ["chromium"]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 30.0  # seconds for anything that the page does but a fit
REFUSED = "Failed to load resource"  # what a browser prints for every answer from 400 on


@contextmanager
def launched():
    """Yield a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def looking(browser, page, refusals=False, **options):
    """Yield a browsing context, whose requests must all go to the page; nothing may fail but requests refused."""
    context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}, "accept_downloads": True, **options})
    context.set_default_timeout(1e3 * PATIENCE)
    requests, printed = [], []
    context.on("request", lambda request: requests.append(request.url))
    context.on(
        "console", lambda message: printed.append(message.text) if message.type in ("error", "warning") else None
    )
    context.on("weberror", lambda error: printed.append(str(error.error)))
    yield context
    context.close()
    own = (page.address, "data:", "blob:")
    assert requests
    assert not [url for url in requests if not url.startswith(own)], "a request left the machine or the page"
    errors = [text for text in printed if not (refusals and REFUSED in text)]
    assert not errors


def open_tab(context, page):
    tab = context.new_page()
    tab.goto(page.address)
    tab.locator("#footer").filter(has_text="metaprior").wait_for()
    return tab


def eventually(tab, condition, seconds=PATIENCE):
    """Wait until a condition of the page holds; its policy forbids Playwright's own way of polling."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        tab.wait_for_timeout(30)


def points(tab):
    return tab.locator("#chart .point")


def click_chart(tab, across, up, svg="#chart"):
    """Click at shares of the chart's width and height; return once the page has its answer."""
    box = tab.locator(svg).bounding_box()
    with tab.expect_response("**/api/predict"):
        tab.locator(svg).click(position={"x": across * box["width"], "y": (1.0 - up) * box["height"]})
    settle(tab)


def settle(tab):
    """Wait until a drawn answer stays what it is."""
    before = None
    while (now := tab.locator("#chart").inner_html()) != before:
        before = now
        tab.wait_for_timeout(120)


def band(tab):
    """Return the band as (x, upper, lower) in pixels of the drawing."""
    path = tab.locator("#chart .band").get_attribute("d")
    numbers = [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]
    n = len(numbers) // 2
    return [(x, upper, lower) for (x, upper), (_, lower) in zip(numbers[:n], reversed(numbers[n:]), strict=True)]


def band_width(tab, across):
    """Return the height of the band at a share of the drawing's width."""
    width = float(tab.locator("#chart").get_attribute("viewBox").split()[2])
    _, upper, lower = min(band(tab), key=lambda each: abs(each[0] - across * width))
    return lower - upper


def values(tab):
    """Return the cells of the table of readings."""
    rows = tab.locator("#readings tbody tr")
    return [
        [field.input_value() for field in row.locator("input").all()]
        for row in rows.all()
        if row.locator("input").count()
    ]


def serious_faults(tab):
    """Return what axe-core finds that is serious or critical."""
    source = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    tab.add_script_tag(content=source)
    found = tab.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:150]} ({node['failureSummary']})"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def screenshot(tab, name, panel):
    """Save a picture of a panel for README and docs if METAPRIOR_SCREENSHOTS names a folder."""
    folder = os.environ.get("METAPRIOR_SCREENSHOTS")
    if not folder:
        return
    from PIL import Image

    os.makedirs(folder, exist_ok=True)
    tab.mouse.move(0, 0)
    tab.locator(panel).evaluate("(each) => { each.scrollIntoView(); document.activeElement.blur(); }")
    tab.wait_for_timeout(300)
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        os.path.join(folder, name), optimize=True
    )
