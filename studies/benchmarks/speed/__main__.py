"""Run the speed benchmarks: `make bench BENCH="--only step,sweep --quick"`."""

import argparse
import faulthandler
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from speed import machine, report

STALLED = 300  # seconds without progress after which to print a traceback, to find deadlocks
ITEMS = ("step", "sweep", "adaptation", "laplace", "growth", "startup")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the file."""
    options = _options(arguments)
    chosen = [name.strip() for name in options.only.split(",")] if options.only else list(ITEMS)
    if unknown := set(chosen) - set(ITEMS):
        print(f"--only must be some of {', '.join(ITEMS)}; got {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - started:6.0f} s  {text}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(STALLED)

    described, sections = machine.describe(), []
    if not machine.has_torch() and options.draws is None:
        say("torch and gpytorch are not installed, so they are left out (pip install -e '.[bench]')")
    if options.draws is not None:
        from speed import sweep

        sections.append(sweep.measure_ours(options.draws, options.steps, say))
    else:
        for name in chosen:
            say(f"== {name}")
            sections += importlib.import_module(f"speed.{name}").measure(options.quick, say)
            report.write(
                options.out, vars(options), described, sections
            )  # after every item, so that an interrupted run has results
    report.write(options.out, vars(options), described, sections)
    print(report.as_markdown(described, sections))
    say(f"written to {options.out} and {options.out.with_suffix('.md')}")
    faulthandler.cancel_dump_traceback_later()
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m speed", description=__doc__)
    parser.add_argument("--only", help=f"some of {','.join(ITEMS)}, separated by commas")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements, in minutes")
    parser.add_argument("--out", type=Path, default=Path("studies/results/speed/speed.json"), help="the JSON file")
    parser.add_argument("--draws", type=int, help="measure only our sweep, with this many draws, for an accelerator")
    parser.add_argument("--steps", type=int, default=4000, help="steps of each run of --draws")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
