"""Files of priors that decay, are cut, mixed up, or whose writer is killed."""

import json
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from metaprior import files, load
from metaprior.files import InvalidFile, read_tensors, write_tensors
from metaprior.wfem import Gaussian, Training, WFEMRegressor

RNG = np.random.default_rng(0)
TASKS = [(x, np.sin(x[:, 0])) for x in RNG.normal(size=(4, 4, 1))]
QUERY = np.linspace(-1, 1, 7)[:, None]


def prediction(meta):
    return np.stack(meta.adapt(*TASKS[0]).predict(QUERY, return_std=True))


@pytest.fixture(scope="module")
def priors(tmp_path_factory):
    """The bytes of two priors of equal shapes, and what the first predicts."""
    folder = tmp_path_factory.mktemp("priors")
    metas = [
        WFEMRegressor("rbf", "constant", likelihood=Gaussian(noise), training=Training(n_steps=0), random_state=0)
        for noise in (0.1, 0.2)
    ]
    for i, meta in enumerate(metas):
        meta.fit(TASKS[:2], TASKS[2:]).save(folder / f"{i}")
    return *((folder / f"{i}").read_bytes() for i in range(2)), prediction(metas[0])


def flip_bits(rng, first, _):
    content = bytearray(first)
    for place in rng.integers(len(content), size=rng.choice([1, 2, 8])):
        content[place] ^= 1 << rng.integers(8)
    return bytes(content)


def cut(rng, first, _):
    return first[: rng.integers(len(first))]


def lose_or_gain(rng, first, _):
    place = rng.integers(len(first))
    return first[:place] + (rng.bytes(rng.integers(1, 9)) if rng.random() < 0.5 else b"") + first[place + 1 :]


def overwrite(rng, first, _):
    begin, end = np.sort(rng.integers(len(first), size=2))
    return first[:begin] + (b"\0" if rng.random() < 0.5 else b"\xff") * (end - begin) + first[end:]


def splice(rng, first, second):
    """The beginning of one file and the end of the other: headers are swapped where that is where they meet."""
    place = 8 + struct.unpack("<Q", first[:8])[0] if rng.random() < 0.5 else rng.integers(len(first))
    return first[:place] + second[place:]


def swap_metadata(rng, first, second):
    """A part of the JSON in front of the tensors from the other file."""
    (size,), (other_size,) = (struct.unpack("<Q", content[:8]) for content in (first, second))
    header, other = json.loads(first[8 : 8 + size]), json.loads(second[8 : 8 + other_size])
    name = rng.choice(list(header["__metadata__"]))
    header["__metadata__"][name] = other["__metadata__"][name]
    changed = json.dumps(header).encode()
    changed += b" " * (-len(changed) % 8)
    return struct.pack("<Q", len(changed)) + changed + first[8 + size :]


@pytest.mark.slow
def test_of_1200_damaged_files_each_is_refused_or_as_good_as_before(priors, tmp_path):
    first, second, expected = priors
    rng = np.random.default_rng(1)
    damages = (flip_bits, cut, lose_or_gain, overwrite, splice, swap_metadata)
    path, outcomes = tmp_path / "prior", {}
    for i in range(1200):
        damage = damages[i % len(damages)]
        content = damage(rng, first, second)
        path.write_bytes(content)
        started = time.thread_time()
        try:
            found = prediction(load(path))
        except InvalidFile:
            outcome = "refused"
        else:
            assert content == second or np.array_equal(found, expected), damage.__name__
            outcome = "read"
        outcomes[damage, outcome] = outcomes.get((damage, outcome), 0) + 1
        assert time.thread_time() - started < 5.0
    assert all(outcomes.get((damage, "refused"), 0) > 144 for damage in damages if damage is not swap_metadata)
    assert outcomes[swap_metadata, "refused"] > 72  # two of its parts are the same in both
    assert outcomes[swap_metadata, "read"] > 72


SAVER = """
import runpy
import sys
import numpy as np
write_tensors = runpy.run_path(sys.argv[2])["write_tensors"]  # without the rest of metaprior, which takes seconds
print("ready", flush=True)
number = 0
while True:
    number += 1
    write_tensors(sys.argv[1], {"number": number}, {"tensor": np.full(500_000, float(number))})
"""


def test_a_save_that_is_killed_leaves_a_whole_file(tmp_path):
    path, rng, numbers = tmp_path / "prior", np.random.default_rng(2), []
    write_tensors(path, {"number": 0}, {"tensor": np.zeros(500_000)})
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, path, files.__file__], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.05, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        header, tensors = read_tensors(path)
        assert (tensors["tensor"] == header["number"]).all()
        numbers.append(header["number"])
    assert max(numbers) > 1
