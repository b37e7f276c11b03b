"""Readers of mini-ImageNet, CUB_200_2011 and their frozen features, as classes in three splits.

The data are looked for under METAPRIOR_DATA, or else under `metaprior` in the user's cache folder.
"""

import csv
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from metaprior.checks import check_choice

SPLITS = ("train", "validation", "test")
SIDE = 84  # pixels; images of other sizes are resized

Array = np.ndarray

MINI_IMAGENET = """\
Download train.csv, val.csv and test.csv from
https://github.com/twitter-research/meta-learning-lstm/tree/master/data/miniImagenet, make the jpg files from ImageNet
(ILSVRC 2012, https://image-net.org) with https://github.com/yaoyao-liu/mini-imagenet-tools, and gather them all in one
folder images."""
CUB = "Download https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz and unpack it."
FEATURES = """\
These features are not published. Ask for the file, or write one with numpy.savez: X (n, d) of numbers, y (n,) the
class index, split (n,) with 0/1/2 = train/validation/test."""


class DataMissing(FileNotFoundError):
    """A data set is missing; the message says what to download and where to put it."""


@dataclass(frozen=True, eq=False)
class ClassData:
    """Labeled samples of classes in three splits. Samples are read when they are needed."""

    name: str
    n_samples: int
    shape: tuple[int, ...]  # of one sample
    splits: Mapping[str, Mapping[str, Array]] = field(repr=False)  # split -> class -> indices of its samples
    read: Callable[[Array], Array] = field(repr=False)  # indices (n,) -> samples (n, *shape)

    def images(self, indices: Sequence[int] | Array, flatten: bool = False) -> Array:
        """Return samples (n, *shape) in float32, pixels in [0, 1]; flattened, (n, product of shape)."""
        wanted = np.asarray(indices)
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise ValueError(f"indices must be integers (n,); got {wanted.dtype} of shape {wanted.shape}.")
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.n_samples:
            came = f"{wanted.min()} to {wanted.max()}"
            raise IndexError(f"indices of {self.name} must be from 0 to {self.n_samples - 1}; got {came}.")
        samples = self.read(wanted.astype(np.intp))
        return samples.reshape(len(wanted), math.prod(self.shape)) if flatten else samples


def data_root() -> Path:
    """Return the folder of the data: METAPRIOR_DATA, or else `metaprior` in the user's cache folder."""
    chosen = os.environ.get("METAPRIOR_DATA")
    return Path(chosen).expanduser() if chosen else user_cache_path("metaprior")


def mini_imagenet(root: Path | str | None = None) -> ClassData:
    """Return mini-ImageNet, from miniimagenet/images/*.jpg and a CSV file of filename,label per split."""
    tables = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}
    folder = find_folder("mini-ImageNet", root, "miniimagenet", ["images", *tables.values()], MINI_IMAGENET)
    rows = [
        (where, folder / "images" / filename, label, split)
        for split, table in tables.items()
        for where, filename, label in _csv_rows(folder / table)
    ]
    return _from_files("mini-ImageNet", rows)


def cub(root: Path | str | None = None) -> ClassData:
    """Return CUB_200_2011, from its official layout.

    Classes i = 0, 1, ... with i % 2 == 0 are for training, i % 4 == 1 for validation and i % 4 == 3 for test.
    """
    tables = ["images.txt", "classes.txt", "image_class_labels.txt"]
    folder = find_folder("CUB_200_2011", root, "CUB_200_2011", ["images", *tables], CUB)
    names, classes, labels = ({key: (where, value) for where, key, value in _lines(folder / name)} for name in tables)
    if unpaired := names.keys() ^ labels.keys():
        among = f"{len(unpaired)} are in only one of them, such as image {min(unpaired)}"
        raise ValueError(f"{folder}: {tables[0]} and {tables[2]} must list the same images; {among}.")
    rows = []
    for image, (where, name) in names.items():
        where_label, label = labels[image]
        if label not in classes or not label.isdecimal():
            raise ValueError(f"{where_label}: class {label!r} of image {image} is not in {folder / tables[1]}.")
        split = ("train", "validation", "train", "test")[(int(label) - 1) % 4]
        rows.append((where, folder / "images" / name, classes[label][1], split))
    return _from_files("CUB_200_2011", rows)


def features(name: str, root: Path | str | None = None) -> ClassData:
    """Return frozen features of "miniimagenet" or "cub", from features/effnetlite0_pca64/*.npz.

    The encoder, an EfficientNet-Lite0, was trained on the 1000 classes of ImageNet: say so beside every result.
    """
    file = f"{check_choice('name', name, ('miniimagenet', 'cub'))}.npz"
    path = find_folder(f"The feature file of {name}", root, "features/effnetlite0_pca64", [file], FEATURES) / file
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            x, y, split = (arrays[key] for key in ("X", "y", "split"))
    except Exception as error:  # a damaged archive raises many kinds of errors
        raise ValueError(f"{path} must be an npz file of arrays X, y and split; reading it failed: {error}.") from error
    return from_arrays(str(path), x, y, split)


def from_arrays(name: str, x: Array, y: Array, split: Array) -> ClassData:
    """Return a data set of samples x (n, ...), classes y (n,) and splits (n,), 0/1/2 = train/validation/test."""
    if x.ndim < 2 or y.shape != x.shape[:1] or split.shape != y.shape:
        raise ValueError(f"{name}: X must be (n, d), y and split (n,); got {x.shape}, {y.shape} and {split.shape}.")
    if x.dtype.kind not in "fiu" or y.dtype.kind not in "iu" or split.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: X must be real numbers, y and split integers; got {x.dtype}, {y.dtype} and {split.dtype}."
        )
    if bad := sorted(set(np.unique(split).tolist()) - {0, 1, 2}):
        raise ValueError(f"{name}: split must be 0, 1 or 2 (train, validation, test); got {bad}.")
    finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    if not finite.all():
        raise ValueError(f"{name}: X must be finite; {np.sum(~finite)} rows are not, the first is {finite.argmin()}.")
    pairs = zip(y.tolist(), split.tolist(), strict=True)
    rows = ((f"{name} row {i}", str(label), SPLITS[s]) for i, (label, s) in enumerate(pairs))
    return ClassData(name, len(x), x.shape[1:], _group(rows), partial(_take, x))


def find_folder(name: str, root: Path | str | None, folder: str, needed: Sequence[str], advice: str) -> Path:
    """Return the folder of a data set, or raise an error that says what to download and where to put it."""
    place = (data_root() if root is None else Path(root)) / folder
    if missing := [part for part in needed if not (place / part).exists()]:
        chosen = "root" if root is not None else "METAPRIOR_DATA"
        raise DataMissing(
            f"{name} is missing: {place} has no {', '.join(missing)}.\n{advice}\n"
            f"Put {', '.join(needed)} into {place}, or set {chosen} to the folder that has {folder}."
        )
    return place


def _csv_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (where, filename, label) of each row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            if header != ["filename", "label"]:
                raise ValueError(f"the first row must be filename,label; got {','.join(header)!r}")
            for row in filter(None, rows):
                if len(row) != 2 or not all(row):
                    raise ValueError(f"row {rows.line_num} must be filename,label; got {','.join(row)!r}")
                yield f"{path} row {rows.line_num}", row[0], row[1]
    except (csv.Error, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{path}: {error}.") from error


def _lines(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (where, key, value) of each line of one of CUB's tables."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}.") from error
    seen = set()
    for number, line in enumerate(lines, 1):
        parts = line.split(maxsplit=1)
        if len(parts) != 2 or parts[0] in seen:
            raise ValueError(f"{path} row {number} must be a new number and its entry; got {line!r}.")
        seen.add(parts[0])
        yield f"{path} row {number}", parts[0], parts[1].rstrip()


def _from_files(name: str, rows: Sequence[tuple[str, Path, str, str]]) -> ClassData:
    """Return a data set of image files from (where, path, class, split), after checking that each exists once."""
    seen = {}
    for where, path, _, _ in rows:
        if path in seen:
            raise ValueError(f"{where}: {path.name} is listed twice, first in {seen[path]}.")
        seen[path] = where
    missing = [(where, path) for where, path, _, _ in rows if not os.path.isfile(path)]
    if missing:
        where, path = missing[0]
        raise ValueError(f"{where}: there is no image {path} ({len(missing)} of {len(rows)} images are missing).")
    splits = _group((where, label, split) for where, _, label, split in rows)
    return ClassData(name, len(rows), (SIDE, SIDE, 3), splits, partial(_read_images, list(seen)))


def _group(rows: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, Array]]:
    """Return split -> class -> indices from (where, class, split) of each sample; a class must be in one split."""
    members: dict[str, list[int]] = {}
    split_of: dict[str, str] = {}
    for index, (where, label, split) in enumerate(rows):
        if split_of.setdefault(label, split) != split:
            raise ValueError(f"{where}: class {label} is in {split}, but was in {split_of[label]} before.")
        members.setdefault(label, []).append(index)
    return {
        split: {label: np.array(indices) for label, indices in members.items() if split_of[label] == split}
        for split in SPLITS
    }


def _take(x: Array, indices: Array) -> Array:
    return x[indices].astype(np.float32)


def _read_images(paths: Sequence[Path], indices: Array) -> Array:
    samples = np.empty((len(indices), SIDE, SIDE, 3), np.float32)
    for sample, index in zip(samples, indices, strict=True):
        sample[:] = _read_image(paths[index])
    samples /= 255
    return samples


def _read_image(path: Path) -> Array:
    from PIL import Image  # only needed to read images

    try:
        with Image.open(path) as image:
            colors = image.convert("RGB")
        if colors.size != (SIDE, SIDE):
            colors = colors.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.asarray(colors)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot read the image {path}: {error}. Is the file damaged or truncated?") from error
