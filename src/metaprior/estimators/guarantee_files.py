"""What conformal intervals are made of, to and from saved priors: the fits without each fold, and their scores."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from metaprior.predict.conformal import Fold, Guarantee
from metaprior.predict.ensemble import Ensemble
from metaprior.schema import MAX_NUMBER, Mismatch, check_array
from metaprior.tasks.context_rules import ContextRule

Parts = tuple[dict[str, Any], dict[str, np.ndarray]]  # JSON and tensors
ReadModel = Callable[[Any, dict[str, Any], dict[str, np.ndarray]], Ensemble]


def guarantee_parts(guarantee: Guarantee, model_parts: Callable[[Ensemble], Parts]) -> Parts:
    """Return what is stored of a guarantee; names of tensors begin with that of their fold."""
    folds, tensors = [], {}
    for i, fold in enumerate(guarantee.folds):
        described, own = model_parts(fold.model)
        own |= {"scores": fold.scores, "score_weights": fold.weights}
        tensors |= {f"{_prefix(i)}{name}": tensor for name, tensor in own.items()}
        folds.append({"n_members": len(fold.model.members), "spread": float(fold.model.spread), "model": described})
    rule = {"kind": guarantee.rule.kind, "size": guarantee.rule.size}
    return {"n_tasks": guarantee.n_tasks, "context": rule, "folds": folds}, tensors


def read_guarantee(
    meta: Any, header: dict[str, Any], tensors: Mapping[str, np.ndarray], read_model: ReadModel
) -> Guarantee | None:
    """Return the guarantee of a file, or None if it has none; raise if a part is missing or does not fit."""
    stored = header.get("guarantee")
    if stored is None:
        return None
    folds = []
    for i, described in enumerate(stored["folds"]):
        prefix = _prefix(i)
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        of_fold = {**header, "n_members": described["n_members"], "model": described.get("model", {})}
        model = read_model(meta, of_fold, own)._replace(spread=float(described["spread"]))
        folds.append(Fold(model, *_read_scores(own, prefix)))
    n_tasks = sum(float(fold.weights.sum()) for fold in folds)
    if abs(n_tasks - stored["n_tasks"]) > 1e-6 * stored["n_tasks"]:
        raise Mismatch(f"guarantee.n_tasks must be the sum of all score_weights, {n_tasks:g}")
    rule = stored["context"]
    return Guarantee(tuple(folds), stored["n_tasks"], ContextRule(rule["kind"], rule["size"]))


def without_folds(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of a file that are not those of a guarantee."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("fold")}


def _read_scores(tensors: Mapping[str, np.ndarray], prefix: str) -> tuple[np.ndarray, np.ndarray]:
    scores = check_array(f"{prefix}scores", tensors.get("scores"), (None,), MAX_NUMBER)
    weights = check_array(f"{prefix}score_weights", tensors.get("score_weights"), (len(scores),))
    if not len(scores) or (scores < 0).any() or (np.diff(scores) < 0).any() or not (weights > 0).all():
        raise Mismatch(f"{prefix}scores must ascend from zero or more, and have positive weights")
    return scores, weights


def _prefix(fold: int) -> str:
    return f"fold{fold}."
