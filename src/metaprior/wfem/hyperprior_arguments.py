"""What users pass as `prior_mean` and `prior_std`: checked, and resolved for each group of parameters."""

from collections.abc import Mapping
from typing import Any

from metaprior.checks import SCALES, Argument, Message, is_number

GROUPS = ("weights", "biases", "scales")


def check_prior_mean(prior_mean: Any) -> dict[str, Any]:
    """Return the mean of each group. 'zero' (the paper) is for networks: scales are centered on their initial value."""
    if isinstance(prior_mean, str) and prior_mean == "zero":
        return {"weights": 0.0, "biases": 0.0, "scales": "initial"}
    if isinstance(prior_mean, str) and prior_mean == "initial":
        return dict.fromkeys(GROUPS, "initial")
    if isinstance(prior_mean, Mapping):
        means = {**check_prior_mean("zero"), **_known_groups(prior_mean, "prior_mean")}
        named = {"zero": 0.0, "initial": "initial"}
        means = {name: named.get(mean, mean) if isinstance(mean, str) else mean for name, mean in means.items()}
        numbers = [mean for mean in means.values() if not (isinstance(mean, str) and mean == "initial")]
        if all(is_number(mean) and abs(mean) <= SCALES[1] for mean in numbers):
            return means
    raise ValueError(
        "prior_mean must be 'zero', 'initial', or a mapping from group (weights, biases, scales) to 'zero', "
        f"'initial' or a number of at most {SCALES[1]:g}; got {prior_mean!r}."
    )


def check_prior_std(prior_std: Any) -> dict[str, float]:
    """Return the standard deviation of each group, from one number or a mapping (1 for groups that it lacks)."""
    stds: dict[str, Any] = dict.fromkeys(GROUPS, 1.0 if isinstance(prior_std, Mapping) else prior_std)
    if isinstance(prior_std, Mapping):
        stds |= _known_groups(prior_std, "prior_std")
    if not all(is_number(std) and SCALES[0] <= std <= SCALES[1] for std in stds.values()):
        expected = "a positive number, or a mapping from group (weights, biases, scales) to positive numbers, or 'auto'"
        between = f"numbers lie between {SCALES[0]:g} and {SCALES[1]:g}"
        raise ValueError(Message(Argument("prior_std"), f" must be {expected} ({between}); got {prior_std!r}."))
    return {name: float(std) for name, std in stds.items()}


def _known_groups(given: Mapping[str, Any], argument: str) -> dict[str, Any]:
    unknown = set(given) - set(GROUPS)
    if unknown:
        raise ValueError(f"{argument} must have groups weights, biases, scales; got {sorted(map(str, unknown))}.")
    return dict(given)
