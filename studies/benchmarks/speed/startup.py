"""Item 6: time to import, to compile, and to the first prediction from a saved prior."""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from speed.processes import run_python
from speed.report import Row, Section
from speed.timing import spread

NOTHING = "pass"
IMPORT = "import metaprior"
PREDICT = """
import sys
import metaprior
meta = metaprior.load(sys.argv[1])
print(meta.adapt([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.5]).predict([[0.5], [1.5]]))
"""
COMPILE = """
import json, time
from metaprior.wfem import MAP
from speed.problem import make_settings, measured_run
from speed.step import our_training
train = our_training(measured_run(make_settings()), MAP(), 100)
times = []
for _ in range(2):
    started = time.perf_counter()
    train()
    times.append(time.perf_counter() - started)
print(json.dumps(times[0] - times[1]))
"""


def measure(quick: bool, say: Callable[[str], None]) -> list[Section]:
    """Return one table; every row is measured in fresh processes."""
    repeats = 1 if quick else 5
    rows = [
        Row("python that does nothing", spread(_walls(NOTHING, repeats))),
        Row("import metaprior", spread(_walls(IMPORT, repeats))),
    ]
    say(f"import: {rows[-1].seconds.median:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        rows += _compilation(Path(folder) / "training", repeats)
        say("training compiled")
        rows += _first_prediction(Path(folder), repeats)
    notes = [
        "wall time of whole processes, including the start of the interpreter; compilation: the first 100 training "
        "steps (MAP, 30 tasks of 5 samples, 4 x 32 networks) minus the next 100",
        "warm: the programs are in JAX's persistent compilation cache (JAX_COMPILATION_CACHE_DIR)",
    ]
    return [Section("Start-up", {"repeats": repeats}, "process", rows, notes)]


def _compilation(cache: Path, repeats: int) -> list[Row]:
    """Measure compilation of the training loop without a cache and with a warm one."""
    off = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    rows = []
    for name, environment in (("compile training, no cache", off), ("compile training, warm cache", _cache_in(cache))):
        if environment is not off:
            run_python("-c", COMPILE, timeout=120, environment=environment)
        outputs = [run_python("-c", COMPILE, timeout=120, environment=environment) for _ in range(repeats)]
        rows.append(Row(name, spread([json.loads(output.splitlines()[-1]) for output in outputs])))
    return rows


def _first_prediction(folder: Path, repeats: int) -> list[Row]:
    """Measure from process start to the first prediction of a saved prior with the paper's networks."""
    from speed.adaptation import fitted

    path = folder / "prior.safetensors"
    fitted().save(path)
    cold = [_wall(PREDICT, str(path), environment=_cache_in(folder / f"cold{i}")) for i in range(repeats)]
    warm = _walls(PREDICT, repeats, str(path), environment=_cache_in(folder / "cold0"))
    off = _walls(PREDICT, repeats, str(path), environment={"JAX_ENABLE_COMPILATION_CACHE": "false"})
    return [
        Row("first prediction, no cache", spread(off)),
        Row("first prediction, cold cache", spread(cold)),
        Row("first prediction, warm cache", spread(warm)),
    ]


def _cache_in(cache: Path) -> dict[str, str]:
    """Return environment variables that cache every compiled program in a folder."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XDG_CACHE_HOME": str(cache),
    }


def _walls(program: str, repeats: int, *arguments: str, environment: Mapping[str, str] | None = None) -> list[float]:
    return [_wall(program, *arguments, environment=environment) for _ in range(repeats)]


def _wall(program: str, *arguments: str, environment: Mapping[str, str] | None = None) -> float:
    started = time.perf_counter()
    run_python("-c", program, *arguments, timeout=120, environment=environment)
    return time.perf_counter() - started
