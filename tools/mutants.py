"""Mutation testing: does a test fail if the code is wrong? Deliberate errors by cosmic-ray, each tried by the tests.

`make mutants` draws a sample of the errors that cosmic-ray can make in the rooms of the package. It applies each to a
copy of the checkout and runs the tests of its module there, then those of its room and of what is built on it. An error
that no test notices survives. Results and a reason for every survivor are in `studies/results/mutants/`.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/metaprior")
ROOMS = sorted(folder.name for folder in (ROOT / SOURCE).iterdir() if list(folder.glob("*.py")))
PACKAGES = (*ROOMS, "root")  # root: the files beside the rooms
COPIED = ("src", "tests", "tools", "conftest.py", "pyproject.toml", "README.md", "docs", "examples", "CONTRIBUTING.md")
# Operators whose errors a programmer could have made; the others (x << y for x + y) would be noticed at once.
OPERATORS = (
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "Pow_Mul")
    ),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("BitAnd_BitOr", "BitOr_BitAnd", "Mod_FloorDiv")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_Gt", "Gt_Lt", "Is_IsNot", "IsNot_Is")),
    *(f"ReplaceUnaryOperator_{pair}" for pair in ("USub_UAdd", "Delete_Invert", "Delete_Not")),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("NumberReplacer", "ZeroIterationForLoop", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
)
# Numbers that decide how quickly, in how much memory or how finely results are computed, and not what they are.
PERFORMANCE = re.compile(
    r"^(MAX_UNROLLED|MAX_BATCHED_LAPACK|ALIGNMENT|BLOCK_SAMPLES|COLUMNS_AT_ONCE|RUNS_AT_ONCE|MAX_QUERIES|CHUNK_BYTES|"
    r"ACCELERATOR_CHUNK_BYTES|FEW_CHUNKS|KEPT_BYTES|N_BOOTSTRAP|MAX_GROUPS)\b.* = "
)
# Whose tests run after those of a room: what is built on it.
BUILT_ON = {
    "tasks": ["tables", "prior"],
    "likelihoods": ["prior", "predict"],
    "prior": ["predict", "search"],
    "search": ["estimators"],
    "predict": ["estimators", "tables"],
    "storage": ["wfem"],
    "tables": ["cli"],
    "root": ["estimators"],
}
FOLDERS = {"botorch": "botorch_model"}  # of tests, where it has another name


class Mutant(NamedTuple):
    """One deliberate error."""

    path: str
    line: int
    operator: str
    occurrence: int
    before: str
    after: str
    code: str  # of the whole file


def find_mutants(packages: tuple[str, ...]) -> list[tuple[Path, str, int, int]]:
    """Return file, operator, occurrence and line of every error that can be made, outside type annotations."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import Visitor, get_ast

    class Positions(Visitor):
        def __init__(self, operator):
            self.operator, self.found = operator, []

        def visit(self, node):
            self.found += [start for start, _ in self.operator.mutation_positions(node)]
            return node

    found = []
    for package in packages:
        folder = ROOT / SOURCE / ("" if package == "root" else package)
        for path in sorted(p.relative_to(ROOT) for p in folder.glob("*.py")):
            code = (ROOT / path).read_text()
            skipped, tree = _annotations(code), get_ast(code)
            performance = {i for i, line in enumerate(code.splitlines(), 1) if PERFORMANCE.match(line)}
            for name in OPERATORS:
                positions = Positions(plugins.get_operator(f"core/{name}")())
                positions.walk(tree)
                for occurrence, start in enumerate(positions.found):
                    if start[0] not in performance and not any(a <= start < b for a, b in skipped):
                        found.append((path, name, occurrence, start[0]))
    return found


def _annotations(code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the ranges of type annotations: what is wrong there is the type checker's to find."""
    nodes = []
    for node in ast.walk(ast.parse(code)):
        nodes += [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr):
            nodes.append(node.value)  # Number = int | float
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            nodes.append(node.args[1])
    return [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in nodes if isinstance(n, ast.AST)]


def make_mutant(path: Path, name: str, occurrence: int, line: int) -> Mutant:
    """Return the error and the code of the file that has it."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    code = (ROOT / path).read_text()
    mutated = mutate_code(code, plugins.get_operator(f"core/{name}")(), occurrence)
    assert mutated is not None
    pairs = zip(code.splitlines(), mutated.splitlines(), strict=False)
    before, after = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    return Mutant(str(path), line, name, occurrence, before.strip(), after.strip(), mutated)


def tests_of(path: str) -> list[list[str]]:
    """Return the tests of a module, in the order to run: those that import it, then those of its package."""
    parts = Path(path).relative_to(SOURCE).with_suffix("").parts
    parts = parts if parts[-1] != "__init__" else parts[:-1] or ("imports",)
    module = ".".join(("metaprior", *parts))
    package = parts[0] if Path(path).parent != SOURCE else "root"
    imports = re.compile(
        rf"\b{re.escape(module)}\b|from metaprior\.{re.escape('.'.join(parts[:-1]))} import .*\b{parts[-1]}\b"
    )
    folder = ROOT / "tests" / FOLDERS.get(package, package)
    room = sorted(folder.glob("test_*.py"))
    known = room or sorted((ROOT / "tests").rglob("test_*.py"))  # files beside the rooms are tested anywhere
    tests = [p for p in known if p.stem.endswith(f"_{parts[-1].strip('_')}")]
    if room or not tests:
        tests += [p for p in known if imports.search(p.read_text())]
    own = list(dict.fromkeys(str(p.relative_to(ROOT)) for p in tests))
    rest = [test for test in (str(p.relative_to(ROOT)) for p in room) if test not in own]
    later = [f"tests/{room}" for room in BUILT_ON.get(package, []) if (ROOT / "tests" / room).is_dir()]
    return [tests for tests in (own, rest, later) if tests]


def try_mutant(mutant: Mutant, folder: Path, timeout: float) -> dict:
    """Run the tests against the error, in a copy of the checkout, until one fails."""
    target, started = folder / mutant.path, time.monotonic()
    original = target.read_text()
    target.write_text(mutant.code)
    result = {**mutant._asdict(), "outcome": "survived", "by": None}
    del result["code"]
    try:
        for tests in tests_of(mutant.path):
            found = _run_tests(folder, tests, timeout)
            if found is not None:
                result.update(outcome="killed", by=found)
                break
    finally:
        target.write_text(original)
    return {**result, "seconds": round(time.monotonic() - started, 1)}


def _run_tests(folder: Path, tests: list[str], timeout: float) -> str | None:
    """Return which test fails, if any."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    path = os.pathsep.join([str(folder / "src"), str(ROOT / "studies"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return None
    if done.returncode in (4, 5):  # of pytest: wrong usage, or no test found
        raise SystemExit(f"{' '.join(tests)}: {done.stdout[-500:]}{done.stderr[-500:]}")
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else done.stdout[-300:] + done.stderr[-300:]


def run(
    mutants: list[Mutant], jobs: int, timeout: float, deadline: float | None, out: Path, unchecked: bool
) -> list[dict]:
    """Try all mutants in copies of the checkout, side by side; first, unless unchecked, test the code as it is."""
    results: list[dict] = []
    lists = [tests for path in {mutant.path for mutant in mutants} for stage in tests_of(path) for tests in stage]
    names = sorted({str(p.relative_to(ROOT)) for name in lists for p in _test_files(ROOT / name)})
    with tempfile.TemporaryDirectory(prefix="metaprior-mutants-") as temporary:
        copies: Queue[Path] = Queue()
        for i in range(jobs):
            copy = Path(temporary) / str(i)
            for name in COPIED:
                source = ROOT / name
                (shutil.copytree if source.is_dir() else shutil.copy)(source, _parent(copy / name))
            copies.put(copy)
        # Programs that a mutant does not change are compiled once for all.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(temporary) / "programs"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

        def work(mutant: Mutant) -> None:
            if deadline is not None and time.monotonic() > deadline:
                return
            copy = copies.get()
            try:
                results.append(try_mutant(mutant, copy, timeout))
            finally:
                copies.put(copy)
            print(f"{len(results)}/{len(mutants)} {results[-1]['outcome']} {mutant.path}:{mutant.line}", flush=True)
            out.write_text(json.dumps(results, indent=1) + "\n")

        def check(name: str) -> str | None:
            copy = copies.get()
            try:
                return _run_tests(copy, [name], 10 * timeout)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            failed = [] if unchecked else [name for name in pool.map(check, names) if name is not None]
            if failed:
                raise SystemExit(f"Without any error these tests fail: {', '.join(failed)}.")
            list(pool.map(work, mutants))
    return results


def _test_files(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def main() -> None:
    """Draw, try, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--sample", type=int, default=400, help="number of errors drawn; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the tests of one error")
    parser.add_argument("--minutes", type=float, help="start no further error after so long")
    parser.add_argument("--draw", type=Path, help="write the errors here and end")
    parser.add_argument("--drawn", type=Path, help="try the errors that --draw wrote")
    parser.add_argument("--unchecked", action="store_true", help="the tests are known to pass without an error")
    parser.add_argument("--out", type=Path, default=ROOT / "mutants.json")
    asked = parser.parse_args()
    if asked.drawn:
        mutants = [Mutant(**each) for each in json.loads(asked.drawn.read_text())]
    else:
        every = find_mutants(tuple(asked.packages))
        chosen = every if not asked.sample else random.Random(asked.seed).sample(every, min(asked.sample, len(every)))
        print(f"{len(chosen)} of {len(every)} possible errors")
        mutants = [make_mutant(*each) for each in chosen]
    if asked.draw:
        asked.draw.write_text(json.dumps([mutant._asdict() for mutant in mutants]))
        return
    deadline = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    results = run(mutants, asked.jobs, asked.timeout, deadline, asked.out, asked.unchecked)
    killed = sum(result["outcome"] == "killed" for result in results)
    by_time = sum(result["by"] == "timeout" for result in results)
    print(
        f"{killed} of {len(results)} errors were noticed ({killed / max(len(results), 1):.0%}), {by_time} by timeout."
    )


if __name__ == "__main__":
    main()
