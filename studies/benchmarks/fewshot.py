"""Choose the classifier's defaults on validation classes, mini-ImageNet to CUB features, and compare what they reach.

    python studies/benchmarks/fewshot.py --out studies/results/tables/fewshot_defaults.csv

varies one setting at a time around the defaults and scores each on episodes of CUB's validation classes (draws that
no test, demo or figure uses). `--study shrinkage` asks how much to shrink the correlations within classes, for several
mixes of source and target tasks. And

    metaprior demo --problem fewshot --draws 32 --out fewshot
    python studies/benchmarks/fewshot.py --compare fewshot/fewshot.csv

gives paired differences on test classes with 95% bootstrap intervals.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import stats

import metaprior.tasks.scaling as scaling
from metaprior import LinearRBFKernel, MetaGPClassifier, MLPEncoder, RBFKernel
from metaprior.metrics.regression import mean_and_standard_error
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import features

VALIDATION_SEED = 1_000_000
MIXES = ((10, 10), (0, 20), (0, 10), (15, 5), (0, 5), (20, 0))  # source and target tasks


def candidates() -> Iterator[tuple[str, dict[str, Any]]]:
    """The default, and one setting varied at a time."""
    yield "defaults", {}
    yield "standardize=True", {"standardize": True}
    yield "standardize=False", {"standardize": False}
    yield "n_steps=0", {"n_steps": 0}
    yield "n_steps=4000", {"n_steps": 4000}
    for std in (0.1, 0.3, 3.0):
        yield f"prior_std={std}", {"prior_std": std}
    for mean in ("zero", "linear", "mlp"):
        yield f"mean={mean}", {"mean": mean}
    yield "kernel=rbf, length scale 8, output scale 4", {"kernel": RBFKernel(8.0, 4.0)}
    yield "kernel=linear+rbf without rbf", {"kernel": LinearRBFKernel(rbf_scale=1e-3)}
    yield "kernel=linear+rbf, linear_scale=64", {"kernel": LinearRBFKernel(linear_scale=64.0)}
    small = {"weights": 0.1, "biases": 0.1, "scales": 1.0}
    for hidden in ((), (32,)):
        encoder = MLPEncoder(hidden, residual=True)
        yield f"residual encoder {hidden}", {"encoder": encoder, "prior_std": small, "learning_rate": 1e-3}
    yield "the paper's mean and kernel", {"mean": "mlp", "kernel": "mlp", "n_steps": 2000}
    for temperature in ("effective", 1000.0):
        yield f"temperature={temperature}", {"temperature": temperature}
    for alpha in (0.0, 0.2, 0.8, 1.0):
        yield f"alpha={alpha}", {"alpha": alpha}
    yield "svgd, 10 particles", {"inference": "svgd"}


def evaluate(arguments: dict[str, Any], n_draws: int, n_source: int = 10, n_target: int = 10) -> dict[str, np.ndarray]:
    """Accuracy and log loss of every draw."""
    episodes = FewShot(features("miniimagenet"), features("cub"))
    scores: dict[str, list[float]] = {"accuracy": [], "log_loss": [], "calibration_error": []}
    for seed in range(VALIDATION_SEED, VALIDATION_SEED + n_draws):
        rng = np.random.default_rng(seed)
        source, target = episodes.source_tasks(20, rng)[:n_source], episodes.target_tasks(20, rng)[:n_target]
        base = {"alpha": "pooled", "random_state": seed % 1000, "progress": False}
        meta = MetaGPClassifier(**{**base, **arguments}).fit(source, target)
        report = meta.evaluate(episodes.validation_tasks(100, rng))
        for name, values in scores.items():
            values.append(report[name])
    return {name: np.array(values) for name, values in scores.items()}


def row_of(name: str, scores: dict[str, np.ndarray], base: dict[str, np.ndarray]) -> dict[str, Any]:
    """Means, and the paired difference to the base."""
    row: dict[str, Any] = {"candidate": name, "draws": len(scores["accuracy"])}
    for metric, values in scores.items():
        row[metric], row[f"{metric}_se"] = mean_and_standard_error(values)
    row["accuracy_minus_base"], row["accuracy_minus_base_se"] = mean_and_standard_error(
        scores["accuracy"] - base["accuracy"]
    )
    rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
    print(
        "{candidate:44s} accuracy {accuracy:.4f} ± {accuracy_se:.4f} ({accuracy_minus_base:+.4f} ± "
        "{accuracy_minus_base_se:.4f})  log loss {log_loss:.4f}  ECE {calibration_error:.3f}".format(**rounded),
        flush=True,
    )
    return rounded


def study_shrinkage(n_draws: int) -> list[dict[str, Any]]:
    """The rule against fixed amounts, without training, so that nothing else moves."""
    rule, rows = scaling._shrunk_correlations, []
    for n_source, n_target in MIXES:
        name = f"{n_source} source, {n_target} target"
        base = evaluate({"n_steps": 0}, n_draws, n_source, n_target)
        rows.append(row_of(f"{name}: the rule", base, base))
        for power in (1.0, 0.0):  # s itself in place of its root, and s = 1
            scaling._shrunk_correlations = lambda tasks, share, power=power: _other_power(rule, tasks, share, power)
            label = "Ledoit-Wolf's s" if power else "no correlations"
            rows.append(row_of(f"{name}: {label}", evaluate({"n_steps": 0}, n_draws, n_source, n_target), base))
        scaling._shrunk_correlations = rule
    return rows


def _other_power(rule: Any, tasks: Any, share: np.ndarray, power: float) -> np.ndarray:
    shrunk, identity = rule(tasks, share), np.eye(tasks[0].shape[1])
    mean = sum(w / len(rows) * (rows.T @ rows) for rows, w in zip(tasks, share, strict=True))
    s = 1.0 - np.sum((shrunk - identity) * (mean - identity)) / np.sum((mean - identity) ** 2)
    s = s**2 if power else 1.0
    return (1.0 - s) * mean + s * identity


def compare(path: Path) -> None:
    """Paired differences in accuracy of the pooled and the small-alpha scheme to the baselines."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    accuracy: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(row["scheme"] for row in rows):
        accuracy[name] = np.array([float(row["accuracy"]) for row in rows if row["scheme"] == name])
    for scheme in (name for name in accuracy if "source +" in name or "WFEM" in name or "20 target" in name):
        for baseline in list(accuracy)[:5]:
            difference = accuracy[scheme] - accuracy[baseline]
            interval = stats.bootstrap((difference,), np.mean, rng=0).confidence_interval
            print(
                f"{scheme:24s} minus {baseline:24s} {difference.mean():+.4f} "
                f"[{interval.low:+.4f}, {interval.high:+.4f}] over {len(difference)} draws"
            )


def main(
    draws: Annotated[int, typer.Option(help="Draws per candidate.")] = 16,
    study: Annotated[str, typer.Option(help="defaults or shrinkage.")] = "defaults",
    comparison: Annotated[Path | None, typer.Option("--compare", help="A fewshot.csv of the demo.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
):
    """Evaluate the candidates and print a line for each."""
    if comparison is not None:
        compare(comparison)
        return
    if study == "shrinkage":
        rows = study_shrinkage(draws)
    else:
        rows, base = [], None
        for name, arguments in candidates():
            scores = evaluate(arguments, draws)
            base = scores if base is None else base
            rows.append(row_of(name, scores, base))
    if out is not None:
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    typer.run(main)
