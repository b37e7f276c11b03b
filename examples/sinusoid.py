"""Learn a prior from 25 source tasks and 5 target tasks of five samples each, and adapt it to a new target task."""

from metaprior import MetaGPRegressor
from metaprior.datasets import Sinusoid

problem = Sinusoid(deviation=0.25)  # or your own lists of (X, y), one pair per task
source_tasks = problem.source_tasks(25, 5, rng=0)
target_tasks = problem.target_tasks(5, 5, rng=1)
test_tasks = problem.test_tasks(200, 5, 50, rng=2)

for alpha in (0.0, "pooled", "auto"):  # target-only, all tasks equal, chosen by cross-validation
    meta = MetaGPRegressor(alpha=alpha, random_state=0).fit(source_tasks, target_tasks)
    scores = meta.evaluate(test_tasks)
    print(f"alpha={alpha!s:6}  RMSE {scores.rmse:.3f} ± {scores.rmse_se:.3f}  NLL {scores.nll:.2f}")

print(meta.transfer_report())

X, y, X_new, y_new = test_tasks[0]
task = meta.adapt(X, y)  # five readings of a new task; closed form
mean, std = task.predict(X_new, return_std=True)
lower, upper = task.interval(X_new, coverage=0.9)
inside = ((lower <= y_new) & (y_new <= upper)).mean()
print(f"new task: mean absolute error {abs(mean - y_new).mean():.3f}, {inside:.0%} of {len(y_new)} in the 90% interval")
