import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metaprior.datasets import Sinusoid
from metaprior.tasks.types import Task, TestTask, as_tasks, as_test_tasks
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import DataMissing, cub, data_root, features, from_arrays, mini_imagenet

SHARED = Path(os.environ.get("METAPRIOR_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
CLASS_STEP, SAMPLE_STEP = 20, 12  # gray levels: the color of a generated image says its class and its number
IN_TURN, BY_INDEX = ([0, 1, 2, 3], [4, 5], [6, 7, 8]), ([0, 2, 4, 6, 8, 10], [1, 5, 9], [3, 7, 11])


def write_image(path, label, sample, size=(84, 84)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (CLASS_STEP * label, SAMPLE_STEP * sample, 0)).save(path, quality=95)


def read_colors(x):
    assert np.all(np.ptp(x, axis=(1, 2)) < 0.02)
    red, green = 255 * x.mean(axis=(1, 2))[:, :2].T
    return np.rint(red / CLASS_STEP).astype(int), np.rint(green / SAMPLE_STEP).astype(int)


def make_mini_imagenet(root, classes=([0, 1], [2, 3], [4, 5]), per_class=3):
    folder = root / "miniimagenet"
    for table, labels in zip(("train.csv", "val.csv", "test.csv"), classes, strict=True):
        members = [(label, sample) for label in labels for sample in range(per_class)]
        for label, sample in members:
            write_image(folder / f"images/n{label}x{sample}.jpg", label, sample)
        rows = "".join(f"n{label}x{sample}.jpg,n{label}\n" for label, sample in members)
        (folder / table).write_text(f"filename,label\n{rows}")
    return folder


def make_cub(root, n_classes=4, per_class=3):
    folder, classes = root / "CUB_200_2011", [f"{label + 1:03}.Bird" for label in range(n_classes)]
    names = [f"{name}/B_{sample}.jpg" for name in classes for sample in range(per_class)]
    for i, name in enumerate(names):
        write_image(folder / "images" / name, *divmod(i, per_class))
    labels = [i // per_class + 1 for i in range(len(names))]
    for table, entries in (("images", names), ("classes", classes), ("image_class_labels", labels)):
        (folder / f"{table}.txt").write_text("".join(f"{i} {entry}\n" for i, entry in enumerate(entries, 1)))
    return folder


def make_features(root, **changes):
    path, n = root / "features/effnetlite0_pca64/cub.npz", np.arange(12)
    path.parent.mkdir(parents=True)
    arrays = {"X": np.float16(n)[:, None].repeat(3, 1), "y": n // 2, "split": n // 4} | changes
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    make_cub(root, n_classes=12, per_class=20)
    return make_mini_imagenet(root, IN_TURN, per_class=20).parent


@pytest.mark.parametrize(("reader", "expected"), [(mini_imagenet, IN_TURN), (cub, BY_INDEX)])
def test_readers_give_the_classes_and_images_of_the_layout(reader, expected, generated, monkeypatch):
    monkeypatch.setenv("METAPRIOR_DATA", str(generated))
    data = reader()
    for labels, classes in zip(expected, data.splits.values(), strict=True):
        for label, indices in zip(labels, classes.values(), strict=True):
            x = data.images(indices)
            assert (x.shape, x.dtype) == ((20, 84, 84, 3), np.float32)
            assert 0 <= x.min() <= x.max() <= 1
            np.testing.assert_array_equal(read_colors(x), [np.full(20, label), np.arange(20)])
    np.testing.assert_array_equal(data.images([3, 7], flatten=True), data.images([3, 7]).reshape(2, -1))
    assert data.images([], flatten=True).shape == (0, 84 * 84 * 3)


def test_features_and_their_indices(tmp_path):
    path, data = make_features(tmp_path), features("cub", tmp_path)
    assert [list(classes) for classes in data.splits.values()] == [["0", "1"], ["2", "3"], ["4", "5"]]
    np.testing.assert_array_equal(data.images(data.splits["test"]["4"]), np.float32([[8] * 3, [9] * 3]), strict=True)
    for bad, error in (([12], IndexError), ([-1], IndexError), (np.array([0.5]), ValueError)):
        with pytest.raises(error, match="indices"):
            data.images(bad)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"cub\.npz must be an npz file"):
        features("cub", tmp_path)


def test_missing_data_is_one_message(tmp_path, monkeypatch):
    assert issubclass(DataMissing, FileNotFoundError)
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path))
    for reader, parts in {
        mini_imagenet: "miniimagenet train.csv images twitter-research image-net.org",
        cub: "CUB_200_2011 images.txt classes.txt https://data.caltech.edu",
        partial(features, "cub"): "features/effnetlite0_pca64 cub.npz split",
    }.items():
        with pytest.raises(DataMissing) as caught:
            reader()
        assert [part for part in f"{parts} {tmp_path} METAPRIOR_DATA".split() if part not in str(caught.value)] == []
    monkeypatch.delenv("METAPRIOR_DATA")
    assert data_root().name == "metaprior"


def test_odd_images_are_converted_and_damaged_ones_named(tmp_path):
    folder = make_mini_imagenet(tmp_path) / "images"
    write_image(folder / "n0x0.jpg", 3, 4, size=(200, 50))
    Image.new("L", (84, 84), 255).save(folder / "n0x1.jpg")
    Image.new("CMYK", (30, 30), (0, 255, 255, 0)).save(folder / "n0x2.jpg")
    x = mini_imagenet(tmp_path).images([0, 1, 2])
    np.testing.assert_array_equal(read_colors(x[:1]), [[3], [4]])
    np.testing.assert_allclose(x[1:].mean((1, 2)), [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]], atol=0.003)
    path, whole = folder / "n1x2.jpg", (folder / "n1x2.jpg").read_bytes()
    for damaged in (whole[:-60], whole[:200], b"", b"no"):
        path.write_bytes(damaged)
        data = mini_imagenet(tmp_path)
        assert data.images([0, 6]).shape == (2, 84, 84, 3)  # an image is read only when it is needed
        with pytest.raises(ValueError, match=r"n1x2\.jpg.*damaged or truncated"):
            data.images([4, 5])


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    [
        ("train.csv", "n0x1.jpg", "lost.jpg", r"row 3: there is no image .*lost\.jpg \(1 of 18 "),
        ("train.csv", "filename,label", "image,class", r"must be filename,label; got 'image,class'"),
        ("val.csv", "n2x0.jpg,n2", "\nn2x0.jpg", r"row 3 must be filename,label; got 'n2x0\.jpg'"),
        ("val.csv", "n3x2.jpg", '"n3x2.jpg', r"unexpected end"),
        ("val.csv", "n2x0.jpg", "n2x\xff.jpg", r"utf-8"),
        ("test.csv", "n4x0.jpg,n4", "n4x0.jpg,n0", r"row 2: class n0 is in test, but was in train"),
        ("test.csv", "n4x0.jpg", "n0x0.jpg", r"row 2: n0x0\.jpg is listed twice, first in .*train\.csv row 2"),
        ("images.txt", "B_1.jpg\n3", "lost.jpg\n3", r"row 2: there is no image .*lost\.jpg \(1 of 12 "),
        (
            "images.txt",
            "2 001.Bird/B_1.jpg",
            "1 001.Bird/B_1.jpg",
            r"row 2 must be a new number and its entry; got '1 001",
        ),
        ("images.txt", "12 004.Bird", "13 004.Bird", r"same images; 2 are in only one of them, such as image 12"),
        ("image_class_labels.txt", "4 2\n", "4 77\n", r"row 4: class '77' of image 4 is not in .*classes\.txt"),
    ],
)
def test_a_malformed_table_names_file_and_row(table, old, new, message, tmp_path):
    make, reader = (make_mini_imagenet, mini_imagenet) if table.endswith("csv") else (make_cub, cub)
    path = make(tmp_path) / table
    path.write_bytes(path.read_text().replace(old, new, 1).encode("latin-1"))
    with pytest.raises(ValueError, match=f"{table}.*{message}"):
        reader(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, r"arrays X, y and split; .*'y"),
        ({"y": np.zeros(11, int)}, r"got \(12, 3\), \(11,\) and \(12,\)"),
        ({"y": np.zeros(12)}, r"y and split integers; got .*float64"),
        ({"X": np.where(np.arange(12) > 9, np.nan, 0.0)[:, None]}, r"2 rows are not, the first is 10"),
        ({"split": np.arange(12) // 2}, r"0, 1 or 2 .* got \[3, 4, 5\]"),
        ({"split": np.arange(12) % 3}, r"row 1: class 0 is in validation, but was in train"),
    ],
)
def test_a_malformed_npz_is_named(changes, message, tmp_path):
    make_features(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"cub\.npz.*{message}"):
        features("cub", tmp_path)


def test_classes_keep_to_their_split_and_samples_to_one_place(generated):
    environment = FewShot(mini_imagenet(generated), cub(generated), queries=10, flatten=False)
    for kind, classes in zip(("source", "target", "validation", "test"), (IN_TURN[0], *BY_INDEX), strict=True):
        seen = set()
        for task in getattr(environment, f"{kind}_tasks")(12, 3):
            labels, samples = read_colors(np.concatenate(task[::2]))
            assert len(set(zip(labels, samples, strict=True))) == (10 if isinstance(task, Task) else 30)
            assert len(set(zip(labels, np.concatenate(task[1::2]), strict=True))) == 2  # a class has one label
            assert all(np.array_equal(y, np.arange(len(y)) % 2) for y in task[1::2])
            seen |= set(labels)
        assert seen == set(classes)
    rng = np.random.default_rng(3)  # tasks are drawn one after another
    np.testing.assert_equal([environment.test_tasks(1, rng)[0] for _ in range(4)], environment.test_tasks(4, 3))


def from_noise(**changes):
    y = np.repeat(np.arange(9), 8)
    data = from_arrays("noise", np.random.default_rng(0).normal(size=(72, 5)), y, y // 3)
    return FewShot(data, data, **({"queries": 3} | changes))


@pytest.mark.parametrize(
    ("environment", "train", "test"), [(Sinusoid(), (9,), (9, 6)), (from_noise(), (), ()), (from_noise(ways=3), (), ())]
)
def test_contract_of_environments(environment, train, test):
    for tasks in (environment.source_tasks(4, *train, 0), environment.target_tasks(4, *train, 0)):
        assert [type(task) for task in tasks] == [Task] * 4
        as_tasks(tasks, "tasks")
    assert environment.test_tasks(0, *test, 0) == []
    tasks = environment.test_tasks(4, *test, 0)
    assert [type(task) for task in tasks] == [TestTask] * 4
    as_test_tasks(tasks, "tasks", tasks[0].x_query.shape[1])
    for seed in (0, np.random.default_rng(0)):
        np.testing.assert_equal(environment.test_tasks(4, *test, seed), tasks)
    others = environment.test_tasks(4, *test, 1)
    assert not any(np.array_equal(task.x_query, other.x_query) for task, other in zip(tasks, others, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": 4}, r"validation class 3 has 8 samples, but shots \+ queries is 9"),
        ({"shots": 9}, "train class 0 has 8 samples, but shots is 9"),
        ({"ways": 4}, "noise has 3 train classes, but ways is 4"),
        ({"ways": 1}, "ways must be an integer of at least 2; got 1"),
        ({"source": from_arrays("x", np.ones((2, 3)), np.ones(2, int), np.ones(2, int))}, r"got \(3,\) .* \(5,\)"),
    ],
)
def test_impossible_episodes_are_an_error_at_once(changes, message):
    with pytest.raises(ValueError, match=message):
        FewShot(**(vars(from_noise()) | changes))


@pytest.mark.parametrize(
    ("read", "folder", "classes", "n_samples"),
    [
        (mini_imagenet, "miniimagenet", [64, 16, 20], {12000, 60000}),  # the first 120 of 600 per class, or all
        (cub, "CUB_200_2011", [100, 50, 50], {11788}),
        (partial(features, "miniimagenet"), "features", [64, 16, 20], {60000}),
        (partial(features, "cub"), "features", [100, 50, 50], {11788}),
    ],
)
def test_real_data(read, folder, classes, n_samples):
    data = read(SHARED) if (SHARED / folder).exists() else pytest.skip(f"no {SHARED / folder}")
    assert data.n_samples in n_samples
    assert [len(split) for split in data.splits.values()] == classes
    assert len(set().union(*data.splits.values())) == sum(classes)
    indices = np.concatenate([members for split in data.splits.values() for members in split.values()])
    np.testing.assert_array_equal(np.sort(indices), np.arange(data.n_samples))
    assert data.images(indices[::400]).std() > 0.1


@pytest.mark.skipif(not (SHARED / "features").exists(), reason="the features are not installed")
def test_nearest_class_mean_on_the_real_features():
    accuracy = []
    for x, y, x_query, y_query in FewShot(features("cub", SHARED), features("cub", SHARED)).test_tasks(200, 0):
        means = np.stack([x[y == label].mean(0) for label in (0, 1)])
        accuracy.append(np.mean(np.sum((x_query[:, None] - means) ** 2, axis=-1).argmin(1) == y_query))
    # the paper's notes say 0.826; 20 000 episodes gave 0.8267 with standard error 0.0009
    assert abs(np.mean(accuracy) - 0.826) < 4 * np.std(accuracy, ddof=1) / np.sqrt(200)
