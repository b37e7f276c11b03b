"""What it costs to change something, and to follow something: files touched, files run through, lines by room.

    python tools/cost_of_change.py touched likelihood-example       # files of src/ that a branch changes
    python tools/cost_of_change.py walks                            # files that a fit and a prediction run through
    python tools/cost_of_change.py rooms                            # files and lines of every room

`touched` is for a branch made for the count: add a likelihood, a term or an option for real, commit it, and count.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ROOT / "src" / "metaprior"
FIT = ["--task", "patient", "--x", "hours", "--y", "heart_rate", "--environment", "hospital", "--target", "south"]


def touched(branch: str, base: str = "main") -> list[str]:
    """Return the files of the package that a branch has changed since it left the base."""
    command = ["git", "diff", "--name-only", f"{base}...{branch}", "--", "src"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()


def run_through(action) -> list[str]:
    """Return the files of the package, one of whose functions an action calls."""
    files = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":  # imports are no steps of the walk
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return sorted(str(Path(file).relative_to(CORE)) for file in files if file.startswith(str(CORE)))


def walks() -> dict[str, list[str]]:
    """Return the files that `metaprior fit` runs through, and those of fit, adapt and predict in Python."""
    from typer.testing import CliRunner

    from metaprior import MetaGPRegressor
    from metaprior.cli import app
    from metaprior.datasets import Sinusoid

    problem = Sinusoid(deviation=0.25)
    source, target = problem.source_tasks(8, 5, rng=0), problem.target_tasks(5, 5, rng=1)

    def in_python():
        MetaGPRegressor(random_state=0).fit(source, target).adapt(*target[0]).predict([[0.0]], return_std=True)

    with tempfile.TemporaryDirectory() as folder:
        runner = CliRunner()
        runner.invoke(app, ["example", "--out", folder])
        arguments = ["fit", f"{folder}/patients.csv", *FIT, "--out", f"{folder}/prior.safetensors"]
        fitted = run_through(lambda: runner.invoke(app, arguments, catch_exceptions=False))
    return {"metaprior fit": fitted, "fit, adapt, predict": run_through(in_python)}


def rooms() -> dict[str, tuple[int, int]]:
    """Return the number of files and lines of every room of the package."""
    files, lines = Counter(), Counter()
    for path in CORE.rglob("*.py"):
        room = path.relative_to(CORE).parts[0] if path.parent != CORE else "."
        files[room] += 1
        lines[room] += path.read_text(encoding="utf-8").count("\n")
    return {room: (files[room], lines[room]) for room in sorted(files)}


def main() -> None:
    """Print what was asked for."""
    what, *arguments = sys.argv[1:] or ["--help"]
    if what == "touched":
        found = touched(*arguments)
        print(*found, f"{len(found)} files", sep="\n")
    elif what == "walks":
        for name, files in walks().items():
            print(f"{name}: {len(files)} files", *files, sep="\n  ")
    elif what == "rooms":
        counted = rooms()
        for room, (n_files, n_lines) in counted.items():
            print(f"{room:<14}{n_files:>4} files{n_lines:>8,} lines")
        total = tuple(map(sum, zip(*counted.values(), strict=True)))
        print(f"{'in all':<14}{total[0]:>4} files{total[1]:>8,} lines")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
