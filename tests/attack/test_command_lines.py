"""Command lines with every mistake that we could think of: an answer or one line of error, never a traceback.

Every twelfth always runs, the others are `slow`. `counters.py` prints how many there were.
"""

import json
import re
import warnings

import pytest
from counters import count
from limits import at_most
from typer.testing import CliRunner

from metaprior.cli import app

MAX_SECONDS = 30.0  # of CPU time: most take a few seconds
HEADER = "shop,town,week,price,sold\n"
ROWS = [
    f"s{shop},{'north' if shop < 4 else 'south'},{week},{price:g},{30 + shop - 2 * price + 0.1 * week:.2f}"
    for shop in range(8)
    for week, price in ((1, 2.5), (2, 3.0), (5, 1.5), (8, 2.0), (9, 4.5), (11, 3.5))
]
GOOD = HEADER + "\n".join(ROWS) + "\n"
NAMES = ["--task", "shop", "--x", "week", "price", "--y", "sold"]
BOTH = [*NAMES, "--environment", "town", "--target", "south"]


def cell(row, column, value):
    """Return the table with one cell replaced."""
    rows = [line.split(",") for line in ROWS]
    rows[row][column] = value
    return HEADER + "\n".join(",".join(cells) for cells in rows) + "\n"


def column(place, change):
    """Return the table with every cell of a column changed."""
    rows = [line.split(",") for line in ROWS]
    for i, cells in enumerate(rows):
        cells[place] = change(cells[place], i)
    return HEADER + "\n".join(",".join(cells) for cells in rows) + "\n"


TABLES = {
    "good": GOOD,
    "empty": "",
    "blank lines": "\n\n\n",
    "header only": HEADER,
    "no header": "\n".join(ROWS),
    "one row": HEADER + ROWS[0] + "\n",
    "one task": HEADER + "\n".join(ROWS[:6]),
    "a reading a task": HEADER + "\n".join(ROWS[::6]),
    "byte order mark": "\ufeff" + GOOD,
    "line ends of Windows": GOOD.replace("\n", "\r\n"),
    "line ends of old": GOOD.replace("\n", "\r"),
    "semicolons": GOOD.replace(",", ";"),
    "tabs": GOOD.replace(",", "\t"),
    "blanks": GOOD.replace(",", ", "),
    "quotes": '"' + GOOD.replace(",", '","').replace("\n", '"\n"')[:-1],
    "an open quote": GOOD.replace("s3,", '"s3,', 1),
    "a cell more": GOOD.replace(ROWS[7], ROWS[7] + ",1"),
    "a cell less": GOOD.replace(ROWS[7], ROWS[7].rsplit(",", 1)[0]),
    "cut short": GOOD[:-14],
    "utf-16": GOOD.encode("utf-16"),
    "latin-1": GOOD.replace("s1,", "é1,").encode("latin-1"),
    "zeros": GOOD.replace("s1,", "\0,"),
    "a zero in an id": GOOD.replace("s3,", "s3\0,", 1),
    "a zero in a name": GOOD.replace("week", "week\0", 1),
    "a zero in a number": cell(9, 4, "3\x001.5"),
    "zeros at the end": GOOD + "\0" * 100,
    "utf-16 without a mark": GOOD.encode("utf-16-be"),
    "bytes": bytes(range(256)) * 20,
    "two columns of a name": GOOD.replace("week", "price", 1),
    "a name of nothing": GOOD.replace("week", "", 1),
    "a name with blanks": GOOD.replace("week", " week ", 1),
    "upper case": GOOD.replace(HEADER, HEADER.upper()),
    "a name of the result": GOOD.replace("week", "mean", 1),
    "a missing y": cell(3, 4, ""),
    "a missing x": cell(3, 2, "NA"),
    "a missing task": cell(3, 0, ""),
    "no town": column(1, lambda _, __: ""),
    "two towns of a shop": cell(0, 1, "south"),
    "text among x": cell(9, 3, "cheap"),
    "text as x": column(3, lambda _, i: "cheap" if i % 2 else "dear"),
    "text among y": cell(9, 4, "none?"),
    "decimal commas": column(4, lambda y, _: f'"{y.replace(".", ",")}"'),
    "thousands": column(4, lambda y, _: f'"{y[:2]},{y[-2:]}0"'),
    "units": column(4, lambda y, _: f"{y} EUR"),
    "percent": column(3, lambda x, _: f"{x}%"),
    "infinity": cell(9, 4, "inf"),
    "too large": cell(9, 4, "1e999"),
    "very large": cell(9, 4, "1e300"),
    "very small": column(4, lambda y, _: f"{y}e-300"),
    "large x": cell(9, 2, "1e200"),
    "an integer of 400 digits": cell(9, 4, "9" * 400),
    "a cell of a megabyte": cell(9, 0, "s" * 2**20),
    "dates": column(2, lambda week, _: f"2026-01-{int(week):02d}"),
    "other dates": column(2, lambda week, _: f"{int(week):02d}/01/2026"),
    "times": column(2, lambda week, _: f"{int(week):02d}:30"),
    "truth": column(3, lambda _, i: "true" if i % 2 else "false"),
    "constant y": column(4, lambda _, __: "3"),
    "constant x": column(2, lambda _, __: "3"),
    "zero and one": column(4, lambda _, i: str(i % 2)),
    "repeated rows": GOOD + "\n".join(ROWS[:9]) + "\n",
    "every row twice": HEADER + "\n".join(row for row in ROWS for _ in range(2)) + "\n",
    "signs": column(0, lambda shop, _: f"😀[red]{shop}[/]"),
    "numbers as names": column(0, lambda shop, _: f"0{shop[1:]}"),
    "times as y": column(4, lambda y, _: f"{y[:2]}:30"),
    "a hexadecimal number": column(2, lambda week, i: "0x15" if i == 9 else week),
    "hexadecimal numbers": column(4, lambda y, _: hex(int(float(y)))),
    "names with exponents": column(0, lambda shop, _: f"1e{shop[1:]}"),
}
TEXT = {
    "three labels": column(4, lambda _, i: "abc"[i % 3]),
    "one label": column(4, lambda _, __: "yes"),
    "a label of a shop's own": column(4, lambda _, i: "yes" if i < 6 else "abc"[i % 2]),
}

OPTIONS = [
    *(
        [name, value]
        for name in ("--task", "--x", "--y", "--environment")
        for value in ("", "nowhere", "sold", "--", "*")
    ),
    *(["--target", value] for value in ("", "nowhere", "NORTH")),
    *(["--alpha", value] for value in ("2", "-1", "nan", "half", "0,5", "1e400", "")),
    *(["--set", f"noise_std={value}"] for value in ("0", "-1", "1e300", "1e-300", "inf", "loud", "")),
    *(["--set", f"search_time={value}"] for value in ("0", "-1", "nan", "soon", "0.001")),
    *(["--hold-out", value] for value in ("0", "1", "-0.5", "nan", "0.99", "0.5", "half")),
    *(["--set", f"random_state={value}"] for value in ("-1", "1.5", "x", str(2**70))),
    *(["--csv", f"sep={value}"] for value in ("", ";;", "a", "\n", ";", "tab", ",", '"')),
    *(["--csv", f"decimal={value}"] for value in ("", ";", "..", ",", ".")),
    *(["--csv", f"encoding={value}"] for value in ("", "klingon", "hex", "utf-16", "ascii", "latin-1")),
    *(["--out", value] for value in ("", ".", "/proc/x", "nowhere/p", "t.csv", "/dev/null/x")),
    *(["--report", value] for value in ("p", "p.xyz", ".", "t.csv")),
    *(["--kind", value] for value in ("", "other", "regression")),
    *([flag] for flag in ("--json", "--drop", "--nonsense", "-x", "--json=1", "extra.csv", "--set", "--csv")),
    *(["--drop", value] for value in ("missing", "duplicates", "rows", "")),
    *(["--set", value] for value in ("", "=", "noise_std", "noise=1", "alpha=1", "conformal=true", "exposure=week")),
    *(
        [],
        ["--x", "week"],
        ["--y", "sold", "--y", "price"],
        ["--y", "sold", "price"],
        ["--kernel", "rbf"],
        ["--task", "shop", "town"],
        ["--", "--json"],
    ),
]
OF_WFEM = [
    *(["--std", value] for value in ("0", "1e300", "wide")),
    *(["--temperature", value] for value in ("0", "1e300", "hot")),
    *(["--learning-rate", value] for value in ("0", "-1", "nan", "fast")),
    *([name, value] for name in ("--inference", "--kernel", "--mean", "--dtype") for value in ("magic", "")),
    *([name, value] for name in ("--n-steps", "--n-particles", "--batch-size") for value in ("-1", "0.5", "many", "")),
    *(["--alpha", value] for value in ("2", "0,5")),
    *(["--noise-std", value] for value in ("0", "loud")),
    *([flag] for flag in ("--likelihood", "--nonsense")),
    *(["--set", value] for value in ("calibrate=false", "shared_classes=false", "schedule=odd")),
    *(
        [],
        ["--kernel", "rbf", "--json"],
        ["--inference", "laplace"],
        ["--set", "search_time=0.001"],
        ["--hold-out", "0.5"],
    ),
]
OTHERS = [
    ["evaluate", "prior", "t.csv", "--context", value] for value in ("-1", "0", "1", "5", "6", "100", "x", str(10**20))
]
OTHERS += [["evaluate", "prior", "t.csv", "--target", value] for value in ("north", "nowhere", "")]
OTHERS += [["evaluate", *paths] for paths in ([], ["prior"], ["t.csv", "prior"], [".", "t.csv"], ["nowhere", "t.csv"])]
OTHERS += [["evaluate", "prior", "t.csv", *more] for more in (["--out", "prior"], ["--plot", "c.png"], ["--json"])]
OTHERS += [["predict", "prior", "t.csv", "t.csv", "--coverage", v] for v in ("0", "1", "-1", "nan", "2", "x", "1e-9")]
OTHERS += [
    ["predict", "prior", "t.csv", "t.csv", "--out", v] for v in ("", "p.txt", ".", "t.csv", "prior", "p.parquet")
]
OTHERS += [["predict", "prior", "t.csv", "t.csv", *v] for v in (["--one-task"], ["--x", "price"], ["--y", "town"])]
OTHERS += [["predict", *paths] for paths in ([], ["prior", "t.csv"], ["prior", "nowhere.csv", "t.csv"], ["t.csv"] * 3)]
OTHERS += [["info", *more] for more in ([], ["prior"], ["nowhere"], ["t.csv"], ["."], ["prior", "--json"], [""])]
OTHERS += [["info", "prior", "--plot", value] for value in ("p.png", "p", "", "prior")]
OTHERS += [["store", *more] for more in ([], ["t.csv"], [".", *NAMES, "--out", "s"], ["*.csv", *NAMES, "--out", "s"])]
OTHERS += [["store", "t.csv", *NAMES, "--out", value] for value in ("", "t.csv", ".", "s/deep/er", "prior")]
OTHERS += [["example", "--out", value] for value in ("", "e", "t.csv", "/proc/e")]
OTHERS += [["fit", value, *BOTH] for value in ("-", "/dev/null", "/dev/stdin", "/dev/fd/99", "/dev/zero")]
OTHERS += [["store", "-", *NAMES, "--out", "s"], ["predict", "prior", "-", "-"], ["evaluate", "prior", "-"]]
OTHERS += [[], ["--version"], ["--help"], ["fit", "--help"], ["fti"], ["--json"], [""], ["-"], ["--", "fit"]]


def lines():
    """Return (command line, content of t.csv) of all attacks."""
    told = []
    for table in TABLES.values():
        told += [(["fit", "t.csv", *BOTH], table), (["evaluate", "prior", "t.csv", "--context", "2"], table)]
        told += [(["predict", "prior", "t.csv", "good.csv"], table), (["predict", "prior", "good.csv", "t.csv"], table)]
        told += [(["store", "t.csv", *BOTH[:-2], "--out", "s"], table)]
    told += [(["fit", "t.csv", *BOTH], table) for table in TEXT.values()]
    told += [(["fit", "t.csv", *BOTH, *options], GOOD) for options in OPTIONS]
    told += [(["wfem", "t.csv", *BOTH, "--n-steps", "5", *options], GOOD) for options in OF_WFEM]
    return told + [(arguments, GOOD) for arguments in OTHERS]


LINES = lines()


@pytest.fixture(scope="module")
def prior(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prior")
    (folder / "t.csv").write_text(GOOD)
    done = CliRunner().invoke(app, ["fit", str(folder / "t.csv"), *BOTH, "--out", str(folder / "prior")])
    assert done.exit_code == 0, done.output
    return (folder / "prior").read_bytes()


def attack(prior, folder, arguments, table):
    """Run a command in a folder of its own; check what became of it."""
    (folder / "t.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    (folder / "good.csv").write_text(GOOD)
    (folder / "prior").write_bytes(prior)
    before = {path.name for path in folder.iterdir()}
    with at_most(MAX_SECONDS), warnings.catch_warnings():
        warnings.simplefilter("error")  # outside `report_errors`, which prints them
        done = CliRunner().invoke(app, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert "Traceback" not in done.output
    assert done.exit_code in (0, 2), done.output  # nothing diverges here
    assert (folder / "prior").read_bytes() == prior
    after = {path.name for path in folder.iterdir()} - before
    assert not [name for name in after if name.endswith(".part")]
    if done.exit_code == 0:
        assert "nan" not in done.stdout.lower()
        count("command lines", "answered")
        return
    as_json = "--json" in arguments
    told = [line for line in done.stderr.splitlines() if not line.startswith("Note:")]
    told = [json.loads(done.stdout)["error"]] if as_json else told
    assert len(told) == 1, told
    assert told[0].strip()
    rest = re.sub(r"--(set|csv) takes.*|--(set|csv) [a-z_]+=?", "", told[0])
    assert not re.search(r"_tasks\b|\b[a-z_]+=|MetaGP", rest), "names of Python"
    assert not {"p", "s", "prior.safetensors", "predictions.csv"} & after, after
    count("command lines", "refused in one line")


def number_of(i):
    return " ".join(part[:20] for part in LINES[i][0])[:60]


@pytest.mark.parametrize("i", range(0, len(LINES), 12), ids=number_of)
def test_some_command_lines(prior, tmp_path, monkeypatch, i):
    monkeypatch.chdir(tmp_path)
    attack(prior, tmp_path, *LINES[i])


@pytest.mark.slow
@pytest.mark.parametrize("i", [i for i in range(len(LINES)) if i % 12], ids=number_of)
def test_all_command_lines(prior, tmp_path, monkeypatch, i):
    monkeypatch.chdir(tmp_path)
    attack(prior, tmp_path, *LINES[i])
