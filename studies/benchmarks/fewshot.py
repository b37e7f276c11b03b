"""Choose settings of WFEMClassifier on validation classes, mini-ImageNet to CUB features, and compare what they reach.

    python studies/benchmarks/fewshot.py --draws 8 --out studies/results/tables/fewshot_defaults.csv

varies one setting of WFEMClassifier at a time around a base, a linear plus RBF kernel, and scores each on tasks of
CUB's validation classes, on draws that no test, demo or figure uses. `--study shrinkage` varies how much the
correlations within classes are shrunk, for several mixes of source and target tasks
(studies/results/tables/fewshot_shrinkage.csv, 16 draws). And

    metaprior demo --problem fewshot --draws 32 --out fewshot
    python studies/benchmarks/fewshot.py --compare fewshot/fewshot.csv

prints paired differences on test classes with 95% bootstrap intervals (the committed fewshot.csv is that of the demo).
The committed tables were made by earlier versions of this script.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from draw_loop import ResultTable, Resume, draws_file, summarize, write_csv
from scipy import stats

import metaprior.tasks.scaling as scaling
from metaprior.wfem import HyperPrior, LinearRBFKernel, MLPEncoder, RBFKernel, Training, WFEMClassifier
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import features
from metaprior_studies.open_settings import validation_seeds

METRICS = ("accuracy", "log_loss", "calibration_error")
COMPARED = ("accuracy", "accuracy_minus_base")
TRAINING = Training(n_steps=1000, progress=False)
BASE: dict[str, Any] = {
    "kernel": "linear+rbf",
    "mean": "constant",
    "alpha": "pooled",
    "temperature": "bayes",
    "training": TRAINING,
}
MIXES = ((10, 10), (0, 20), (0, 10), (15, 5), (0, 5), (20, 0))  # source and target tasks


def candidates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the base, and one setting varied at a time."""
    yield "defaults", {}
    yield "standardize=True", {"training": replace(TRAINING, standardize=True)}
    yield "standardize=False", {"training": replace(TRAINING, standardize=False)}
    yield "n_steps=0", {"training": replace(TRAINING, n_steps=0)}
    yield "n_steps=4000", {"training": replace(TRAINING, n_steps=4000)}
    for std in (0.1, 0.3, 3.0):
        yield f"prior_std={std}", {"hyperprior": HyperPrior(std=std)}
    for mean in ("zero", "linear", "mlp"):
        yield f"mean={mean}", {"mean": mean}
    yield "kernel=rbf, length scale 8, output scale 4", {"kernel": RBFKernel(8.0, 4.0)}
    yield "kernel=linear+rbf without rbf", {"kernel": LinearRBFKernel(rbf_scale=1e-3)}
    yield "kernel=linear+rbf, linear_scale=64", {"kernel": LinearRBFKernel(linear_scale=64.0)}
    small = HyperPrior(std={"weights": 0.1, "biases": 0.1, "scales": 1.0})
    for hidden in ((), (32,)):
        encoder = MLPEncoder(hidden, residual=True)
        slower = replace(TRAINING, learning_rate=1e-3)
        yield f"residual encoder {hidden}", {"encoder": encoder, "hyperprior": small, "training": slower}
    networks = {"mean": "mlp", "kernel": "mlp", "training": replace(TRAINING, n_steps=2000)}
    yield "the paper's mean and kernel", networks
    for temperature in ("effective", 1000.0):
        yield f"temperature={temperature}", {"temperature": temperature}
    for alpha in (0.0, 0.2, 0.8, 1.0):
        yield f"alpha={alpha}", {"alpha": alpha}
    yield "svgd, 10 particles", {"inference": "svgd"}


def measure(
    table: ResultTable, name: str, arguments: dict[str, Any], n_draws: int, n_source: int = 10, n_target: int = 10
) -> None:
    """Add a row per draw of one candidate."""
    episodes = FewShot(features("miniimagenet"), features("cub"))
    for seed in validation_seeds(n_draws):
        rng = np.random.default_rng(seed)
        source, target = episodes.source_tasks(20, rng)[:n_source], episodes.target_tasks(20, rng)[:n_target]
        tasks = DrawnTasks(source, target, episodes.validation_tasks(100, rng))
        meta = WFEMClassifier(**{**BASE, **arguments}, random_state=seed % 1000)
        table.measure({"candidate": name, "draw": seed}, meta, tasks, METRICS)


def measure_shrinkage(table: ResultTable, n_draws: int) -> list[dict[str, Any]]:
    """Compare the rule with fixed amounts of shrinkage, without training, so that nothing else changes."""
    rule, rows = scaling._shrunk_correlations, []
    for n_source, n_target in MIXES:
        mix = f"{n_source} source, {n_target} target"
        for label, power in (("the rule", None), ("Ledoit-Wolf's s", 1.0), ("no correlations", 0.0)):
            if power is not None:
                scaling._shrunk_correlations = lambda tasks, share, power=power: _other_power(rule, tasks, share, power)
            try:
                untrained = {"training": replace(TRAINING, n_steps=0)}
                measure(table, f"{mix}: {label}", untrained, n_draws, n_source, n_target)
            finally:
                scaling._shrunk_correlations = rule
        frame = table.frame()
        rows += summarize(frame[frame["candidate"].str.startswith(mix)], "candidate", METRICS, *COMPARED)
    return rows


def _other_power(rule: Any, tasks: Any, share: np.ndarray, power: float) -> np.ndarray:
    """Return correlations shrunk by s (power 1) in place of its root, which is the rule, or wholly (power 0)."""
    shrunk, identity = rule(tasks, share), np.eye(tasks[0].shape[1])
    mean = sum(w / len(rows) * (rows.T @ rows) for rows, w in zip(tasks, share, strict=True))
    s = 1.0 - np.sum((shrunk - identity) * (mean - identity)) / np.sum((mean - identity) ** 2)
    s = s**2 if power else 1.0
    return (1.0 - s) * mean + s * identity


def compare(path: Path) -> None:
    """Print paired differences of the meta-trained schemes from the first five rows of the demo."""
    accuracy = pd.read_csv(path).pivot(index="draw", columns="scheme", values="accuracy")
    order = pd.read_csv(path)["scheme"].unique()
    for scheme in order[5:]:
        for baseline in order[:5]:
            difference = (accuracy[scheme] - accuracy[baseline]).to_numpy()
            interval = stats.bootstrap((difference,), np.mean, rng=0).confidence_interval
            print(
                f"{scheme:24s} minus {baseline:24s} {difference.mean():+.4f} "
                f"[{interval.low:+.4f}, {interval.high:+.4f}] over {len(difference)} draws"
            )


def main(
    draws: Annotated[int, typer.Option(help="Draws per candidate.")] = 16,
    study: Annotated[str, typer.Option(help="defaults or shrinkage.")] = "defaults",
    comparison: Annotated[Path | None, typer.Option("--compare", help="A fewshot.csv of the demo.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write; single draws go beside it.")] = None,
    resume: Resume = False,
):
    """Score the candidates and print a line for each; differences from the first are paired by draw."""
    if comparison is not None:
        compare(comparison)
        return
    table = ResultTable(draws_file(out), ("candidate", "draw"), resume)
    if study == "shrinkage":
        rows = measure_shrinkage(table, draws)
    else:
        for name, arguments in candidates():
            measure(table, name, arguments, draws)
        rows = summarize(table.frame(), "candidate", METRICS, *COMPARED)
    for row in rows:
        print(
            "{candidate:44s} accuracy {accuracy:.4f} ± {accuracy_se:.4f} ({accuracy_minus_base:+.4f} ± "
            "{accuracy_minus_base_se:.4f})  log loss {log_loss:.4f}  ECE {calibration_error:.3f}".format(**row)
        )
    if out is not None:
        write_csv(rows, out)


if __name__ == "__main__":
    typer.run(main)
