"""Folders of stored tasks: full disks, links, and content that has changed since it was written."""

import json
import resource

import numpy as np
import pandas as pd
import pytest

from metaprior import InvalidFile, MetaGPRegressor, open_tasks, store_tasks
from metaprior.storage import task_folders
from metaprior.storage.stored_tasks import record_of
from metaprior.storage.task_folders import header_digest

COLUMNS = {"task": "patient", "x": ["hours", "dose"], "y": "rate", "environment": "hospital"}


@pytest.fixture
def table(tmp_path):
    frame = pd.DataFrame({"patient": np.repeat(np.arange(10), 3), "hospital": np.repeat(["north", "south"], 15)})
    frame[["hours", "dose", "rate"]] = np.random.default_rng(0).normal(size=(30, 3))
    frame.to_parquet(tmp_path / "all.parquet")
    return tmp_path / "all.parquet"


@pytest.fixture
def stored(table, tmp_path):
    store_tasks(table, tmp_path / "out", **COLUMNS)
    return tmp_path / "out"


def _sign(folder):
    """Make the checksums those of what is in the folder, as someone could who means to."""
    header = json.loads((folder / "tasks.json").read_text())
    header["files"] = {name: record_of(folder / name) for name in header["files"]}
    (folder / "tasks.json").write_text(json.dumps({**header, "digest": header_digest(header)}))


def _fit(folder):
    return MetaGPRegressor(alpha=0.5, random_state=0).fit(open_tasks(folder), target="south")


@pytest.fixture
def no_space():
    """Files of at most 256 bytes, beyond which writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_with_the_path_that_was_given(table, tmp_path, request):
    request.getfixturevalue("no_space")
    with pytest.raises(OSError, match=f"File too large: '{tmp_path / 'out'}'"):
        store_tasks(table, tmp_path / "out", **COLUMNS)
    assert [path.name for path in tmp_path.iterdir()] == ["all.parquet"]


def test_a_link_to_stored_tasks_stays(table, tmp_path):
    (tmp_path / "link").symlink_to("real")
    for overwrite in (False, True):
        store_tasks(table, tmp_path / "link", **COLUMNS, overwrite=overwrite)
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.parquet", "link", "real"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.update(environments=[]), "environments must be a list of length >= 1"),
        (
            lambda header: header["environments"][0].update(tasks=10**30),
            r"environments\[0\].tasks must be an integer <= ",
        ),
        (lambda header: header["environments"][0].update(tasks=10**9), "do not belong together"),
        (lambda header: header["environments"][0].update(name=["a"]), r"environments\[0\].name must be text"),
        (lambda header: header["environments"].append(header["environments"][0]), "names that differ"),
        (lambda header: header.update(files=3), "files must be an object"),
        (lambda header: header.pop("columns"), "lacks columns"),
        (lambda header: header.update(more=json.loads("[" * 40 + "]" * 40)), "nested more than"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(table, tmp_path, change, message):
    out = tmp_path / "out"
    store_tasks(table, out, **COLUMNS)
    header = json.loads((out / "tasks.json").read_text())
    change(header)
    (out / "tasks.json").write_text(json.dumps({**header, "digest": header_digest(header)}))
    with pytest.raises(InvalidFile, match=message):
        open_tasks(out)


def test_arrays_of_another_kind_are_refused(table, tmp_path):
    out = tmp_path / "out"
    store_tasks(table, out, **COLUMNS)
    written = {name: np.load(out / f"{name}.npy") for name in ("x", "y", "offsets")}
    wrong = [
        ("x", written["x"].astype(np.float32), "x.npy must be float64"),
        ("y", written["y"][:, None], "do not belong together"),
        ("offsets", written["offsets"].astype(np.float64), "offsets.npy must be int64"),
        ("offsets", written["offsets"][::-1].copy(), "do not belong together"),
        ("offsets", np.zeros(0, np.int64), "do not belong together"),
    ]
    for name, array, message in wrong:
        np.save(out / f"{name}.npy", array)
        _sign(out)
        with pytest.raises(InvalidFile, match=message):
            open_tasks(out)
        np.save(out / f"{name}.npy", written[name])


def test_values_that_have_become_nan_are_found(table, tmp_path):
    store_tasks(table, tmp_path / "out", **{**COLUMNS, "environment": None})
    y = np.load(tmp_path / "out" / "y.npy", mmap_mode="r+")
    y[3] = np.nan
    y.flush()
    with pytest.raises(ValueError, match="some values are NaN or infinite"):
        _ = open_tasks(tmp_path / "out").moments


def _flip(content, place, bit=0):
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "offsets.npy"])
@pytest.mark.parametrize("place", [0, 70, 128, -8, -1])
def test_a_flipped_bit_is_found_before_a_fit(name, place, stored):
    content = (stored / name).read_bytes()
    (stored / name).write_bytes(_flip(content, place % len(content)))
    with pytest.raises(InvalidFile, match=rf"{name} (is damaged|cannot be read)"):
        _fit(stored)


def test_a_flipped_bit_in_the_header_is_found_or_changes_nothing(stored):
    content = (stored / "tasks.json").read_bytes()
    meant, n_refused = json.loads(content), 0
    for place in range(len(content)):
        changed = _flip(content, place, place % 7)
        (stored / "tasks.json").write_bytes(changed)
        try:
            open_tasks(stored)
        except InvalidFile:
            n_refused += 1
        else:
            assert json.loads(changed) == meant
    assert n_refused > 0.7 * len(content)  # the rest is space between


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: np.save(folder / "y.npy", np.load(folder / "y.npy")[::-1].copy()),
        lambda folder: np.save(folder / "x.npy", np.load(folder / "x.npy")[:, ::-1].copy()),
        lambda folder: (folder / "y.npy").write_bytes((folder / "y.npy").read_bytes()[:-8]),
        lambda folder: (folder / "y.npy").unlink(),
        lambda folder: [
            (folder / "y.npy").rename(folder / "z.npy"),
            (folder / "offsets.npy").rename(folder / "y.npy"),
            (folder / "z.npy").rename(folder / "offsets.npy"),
        ],
    ],
    ids=["reversed y", "swapped columns", "truncated", "missing", "swapped files"],
)
def test_other_content_is_found_before_a_fit(damage, stored):
    damage(stored)
    with pytest.raises(InvalidFile, match=r"\.npy is damaged: .*Store the tasks again \(metaprior.store_tasks\)"):
        _fit(stored)


@pytest.mark.parametrize("use", ["list", "evaluate", "adapt_many", "fitted_on"])
def test_other_content_is_found_wherever_all_tasks_are_read(use, stored):
    meta = _fit(stored)
    opened = open_tasks(stored)["south"]
    assert len(list(opened)) == 5
    np.save(stored / "y.npy", np.load(stored / "y.npy")[::-1].copy())
    calls = {
        "list": lambda tasks: list(tasks),
        "evaluate": lambda tasks: meta.evaluate(tasks, context=2),
        "adapt_many": meta.adapt_many,
        "fitted_on": meta.fitted_on,
    }
    for tasks in (opened, open_tasks(stored)["south"], open_tasks(stored)["south"][:4]):
        with pytest.raises(InvalidFile, match=r"y\.npy is damaged"):
            calls[use](tasks)


def test_content_that_changes_between_opening_and_fitting_is_found(table, stored):
    opened = open_tasks(stored)
    opened["south"].verify()
    with open(stored / "y.npy", "r+b") as file:
        file.seek(200)
        file.write(b"12345678")
    for tasks in (opened["south"], opened["north"][1:3]):
        with pytest.raises(InvalidFile, match=r"y\.npy is damaged: its content is not what was written"):
            tasks.verify()
    store_tasks(table, stored, **COLUMNS, overwrite=True)
    open_tasks(stored)["south"].verify()


@pytest.mark.parametrize("other", ["notes.txt", ".hidden", "plots/", "rows"])
def test_a_folder_with_other_things_is_not_replaced(other, table, stored):
    path = stored / other
    _ = path.mkdir() if other.endswith("/") else path.write_text("mine")
    before = sorted(each.name for each in stored.iterdir())
    with pytest.raises(
        ValueError, match=rf"out must be a new folder.*holds more than stored tasks: {path.name}\. Move"
    ):
        store_tasks(table, stored, **COLUMNS, overwrite=True)
    assert sorted(each.name for each in stored.iterdir()) == before
    assert open_tasks(stored)["south"]


def test_what_links_in_a_folder_lead_to_stays(table, stored, tmp_path):
    (tmp_path / "mine.npy").write_bytes((stored / "y.npy").read_bytes())
    (stored / "y.npy").unlink()
    (stored / "y.npy").symlink_to(tmp_path / "mine.npy")
    store_tasks(table, stored, **COLUMNS, overwrite=True)
    assert not (stored / "y.npy").is_symlink()
    assert (tmp_path / "mine.npy").read_bytes() == (stored / "y.npy").read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["all.parquet", "mine.npy", "out"]


def test_what_appears_while_tasks_are_stored_stays(table, tmp_path, monkeypatch):
    out, place_rows = tmp_path / "out", task_folders._place_rows

    def late(*arguments):
        place_rows(*arguments)
        out.mkdir()
        (out / "mine.txt").write_text("mine")

    monkeypatch.setattr(task_folders, "_place_rows", late)
    with pytest.raises(ValueError, match="holds no stored tasks"):
        store_tasks(table, out, **COLUMNS)
    assert (out / "mine.txt").read_text() == "mine"
