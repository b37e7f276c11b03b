"""Distinguish two classes from five examples each, with a prior learned from other classes.

The images are generated. `FewShot(mini_imagenet(), cub())` uses real ones (`metaprior_studies.environments.images`).
"""

from metaprior import MetaGPClassifier
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.generated import generated_images

problem = FewShot(*generated_images(), shots=5, queries=15)
source_tasks = problem.source_tasks(20, rng=0)  # (X, y): ten images of two classes, and their labels
target_tasks = problem.target_tasks(10, rng=1)
test_tasks = problem.test_tasks(100, rng=2)  # classes that are in no other task

for alpha in (0.0, 0.3, "pooled"):
    meta = MetaGPClassifier(alpha=alpha, shared_classes=False, random_state=0).fit(source_tasks, target_tasks)
    scores = meta.evaluate(test_tasks)
    accuracy = f"{scores.accuracy:.3f} ± {scores.accuracy_se:.3f}"
    print(f"alpha={meta.alpha_:.2f}  accuracy {accuracy}  log loss {scores.log_loss:.3f}")

X, y, X_new, y_new = test_tasks[0]
task = meta.adapt(X, ["wren" if label else "finch" for label in y])  # any labels
print(task.classes_, task.predict(X_new)[:4], task.predict_proba(X_new)[:4].round(2).tolist())
