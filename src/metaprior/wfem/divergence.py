"""The error for a training that diverged, and what to try then."""

from metaprior.checks import Argument

# In the order to try.
DIVERGENCE_ADVICE = (
    *("a smaller ", Argument("learning_rate"), "; a larger ", Argument("noise_std"), ", or "),
    *(Argument("noise_std", "learned"), "; a smaller ", Argument("prior_std"), " or ", Argument("temperature"), "; "),
    *(Argument("dtype", "float64"), "."),
)


class TrainingDiverged(ArithmeticError):
    """Training produced a value that is not finite. The message says what to try."""
