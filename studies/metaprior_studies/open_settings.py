"""Settings that the paper leaves open, and the draws that they are chosen on.

The paper states the networks, the noise, gamma, Adam and the numbers of tasks and samples. The values below were chosen
by `metaprior reproduce settings`: the scores of PACOH on N target tasks, on validation draws that no figure uses. A
test compares them with the committed table of that search.
"""

from dataclasses import dataclass

FIRST_VALIDATION_SEED = 1_000_000


@dataclass(frozen=True)
class OpenSettings:
    """Settings not stated in the paper. We also use a cosine schedule, all tasks in every step, standardized data."""

    prior_std: float  # sigma_P
    learning_rate: float
    n_steps: int
    length_scale: float | str = "median"  # l of SVGD


SINUSOID = OpenSettings(prior_std=8.0, learning_rate=1e-2, n_steps=1000)
FEATURES = OpenSettings(prior_std=10.0, learning_rate=1e-3, n_steps=30)
FEATURES_SVGD = OpenSettings(prior_std=0.3, learning_rate=1e-2, n_steps=100, length_scale=1e3)
PIXELS = OpenSettings(prior_std=1.0, learning_rate=1e-4, n_steps=50)
PIXELS_SVGD = OpenSettings(prior_std=0.3, learning_rate=1e-2, n_steps=50, length_scale=1e4)


def reporting_seeds(n_draws: int) -> range:
    """Return the seeds of the draws that figures show."""
    if n_draws > FIRST_VALIDATION_SEED:
        raise ValueError(
            f"n_draws must be at most {FIRST_VALIDATION_SEED}, the seed of the first validation draw; got {n_draws}."
        )
    return range(n_draws)


def validation_seeds(n_draws: int) -> range:
    """Return the seeds of the draws that settings are chosen on."""
    return range(FIRST_VALIDATION_SEED, FIRST_VALIDATION_SEED + n_draws)
