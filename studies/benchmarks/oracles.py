"""RMSE of the best possible predictors on the sinusoid (deviation 0.75, 5 context and 50 query points per task).

    python studies/benchmarks/oracles.py

About a minute on 2 cores.
"""

import numpy as np

from metaprior.datasets import Sinusoid
from metaprior.metrics import mean_and_standard_error, root_mean_square_error
from metaprior_studies.environments.sinusoid_oracles import bayes_oracle, gp_oracle, target_mean


def main(n_chunks: int = 200, chunk: int = 1000):
    environment = Sinusoid(0.75)
    rng = np.random.default_rng(0)
    errors: dict[str, list[np.ndarray]] = {"Bayes-optimal": [], "true GP prior": [], "true prior mean": []}
    for _ in range(n_chunks):
        functions = environment.target_functions(chunk, rng)
        x_context, y_context = environment.observe(functions, 5, rng)
        x_query, y_query = environment.observe(functions, 50, rng)
        bayes = bayes_oracle(environment, x_context, y_context, x_query)
        means = {
            "Bayes-optimal": np.einsum("kt,ktq->tq", np.exp(bayes.log_weights), bayes.mean),
            "true GP prior": gp_oracle(environment, x_context, y_context, x_query).mean[0],
            "true prior mean": target_mean(environment, x_query),
        }
        for name, mean in means.items():
            errors[name].append(root_mean_square_error(y_query, mean))
    for name, values in errors.items():
        mean, standard_error = mean_and_standard_error(np.concatenate(values))
        print(f"{name:16s} {mean:.5f} ± {standard_error:.5f}  ({n_chunks * chunk} tasks)")


if __name__ == "__main__":
    main()
