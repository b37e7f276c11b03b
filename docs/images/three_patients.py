"""Draw the picture of the landing page: three new patients, predicted by a GP alone, a mixed model and metaprior.

    python docs/images/three_patients.py docs/images/three_patients.png

The tables are those of `metaprior example`, made-up heart rates after surgery. All three see the first five readings of
the first three patients of test.csv; the mixed model and metaprior have learned from patients.csv.
"""

import sys
from importlib import resources

import numpy as np

from metaprior import MetaGPRegressor, tasks_from_frame
from metaprior.estimators.comparison import per_task_gp
from metaprior.plots.style import DPI
from metaprior.tasks.types import Task
from metaprior_studies.peers.mixed_model import fit_mixed
from metaprior_studies.task_panels import draw_tasks

N_GIVEN, NORMAL_95 = 5, 1.645
COLUMNS = {"task": "patient", "x": "hours", "y": "heart_rate"}


def draw():
    """Return the figure, and print the errors on all patients of test.csv."""
    folder = resources.files("metaprior").joinpath("datasets", "example")
    tasks = tasks_from_frame(str(folder / "patients.csv"), **COLUMNS, environment="hospital")
    meta = MetaGPRegressor(context=("first", N_GIVEN), random_state=0).fit(tasks, target="south")
    mixed = fit_mixed(tasks["north"], tasks["south"], seed=0)

    def alone(x, y, x_new):
        mean, std = per_task_gp(x, y, x_new)
        return mean, mean - NORMAL_95 * std, mean + NORMAL_95 * std

    def by_mixed_model(x, y, x_new):
        [predicted] = mixed.predict([Task(x, y)], [x_new])
        return predicted.mean(), *predicted.interval(0.9)

    def by_metaprior(x, y, x_new):
        task = meta.adapt(x, y)
        return task.predict(x_new), *task.interval(x_new, coverage=0.9)

    tests = []
    for task in tasks_from_frame(str(folder / "test.csv"), **COLUMNS):
        order = np.argsort(task.x[:, 0])
        given, asked = order[:N_GIVEN], order[N_GIVEN:]
        tests.append((task.x[given], task.y[given], task.x[asked], task.y[asked]))
    rows = [{"a GP alone": alone}, {"mixed model": by_mixed_model}, {"metaprior": by_metaprior}]
    for [(name, predict)] in (row.items() for row in rows):
        errors = [np.sqrt(np.mean((predict(x, y, x_new)[0] - y_new) ** 2)) for x, y, x_new, y_new in tests]
        print(f"{name}: mean RMSE {np.mean(errors):.2f} bpm over {len(tests)} patients")
    titles = [f"new patient {number}" for number in (1, 2, 3)]
    return draw_tasks(tests, rows, ("hours after surgery", "heart rate (bpm)"), titles, size=(3.3, 1.65))


if __name__ == "__main__":
    draw().savefig(sys.argv[1], dpi=DPI, metadata={"Software": None})
