"""
# Patients between two hospital units

**The question.** My unit has seen five patients of a new kind. Another unit has seen many.
Can their records help me to predict a patient of mine from five blood tests, and how sure
may I be?

Here the new unit recovers patients from cardiac surgery and the other is the medical one. A
reading is the hematocrit, the share of red cells in the blood, taken a few times a day in
the first 48 hours. The data are the intensive care records of [PhysioNet
2012](https://physionet.org/content/challenge-2012/1.0.0/).
"""

# %%
# ## The table
# One row per reading: the patient, the unit, the hours since admission, the hematocrit.

import matplotlib.pyplot as plt
import pandas as pd
from scipy.stats import sem

from metaprior import MetaGPRegressor, tasks_from_frame
from metaprior.estimators.comparison import score_per_task_gp
from metaprior_studies.environments.real_tables import find_files
from metaprior_studies.task_panels import draw_tasks

# The next line says what to download if the data are missing.
patients_csv, readings_csv = find_files("physionet-hct")
units = {3: "medical", 2: "cardiac surgery"}
unit_of = pd.read_csv(patients_csv).set_index("RecordID")["ICUType"].map(units)
table = pd.read_csv(readings_csv)
table.columns = ["patient", "hours", "hematocrit"]
table = table.assign(unit=table["patient"].map(unit_of)).dropna()
table = table.groupby("patient").filter(lambda readings: len(readings) >= 8)
print(table.head(3).to_string(index=False))

# %%
# Forty patients of the medical unit and five of ours to learn from, and fifty others of
# ours to test on. Of these, five readings are given, drawn at random from the stay, and the
# others are held back.

table = table.sample(frac=1, random_state=0)  # in random order
columns = {"task": "patient", "x": "hours", "y": "hematocrit", "environment": "unit"}
tasks = tasks_from_frame(table, **columns)
medical, surgical = tasks["medical"], tasks["cardiac surgery"]
test = [(X[:5], y[:5], X[5:], y[5:]) for X, y in surgical[5:55]]

# %%
# ## The answer
# `fit` learns one prior from both units. Cross-validation over our five patients decides
# how much the other unit counts.

meta = MetaGPRegressor(random_state=0).fit(medical[:40], surgical[:5])
print(meta.transfer_report())

# %%
# The first lines say what the other unit was worth: the gain in log density per held-back
# reading, with its standard error. Five patients can rarely tell for sure. So metaprior
# does not pick one setting, it averages over those that do well, and "target-only" is
# always one of them.
#
# ## Three new patients
# `meta.adapt(X, y)` takes the five readings of a patient, without training, and predicts
# any other hour.


def predict(X, y, X_new):
    task = meta.adapt(X, y)
    return task.predict(X_new), *task.interval(X_new, coverage=0.9)


names = ("hours since admission", "hematocrit (%)")
titles = [f"new patient {number}" for number in (1, 2, 3)]
draw_tasks(test, [{"metaprior": predict}], names, titles)
plt.show()

# %%
# ## Was it worth it?
# The alternative without other patients is a Gaussian process fitted to the five readings
# of a patient alone.

alone, learned = score_per_task_gp(test), meta.evaluate(test)
for name, scores in (("a GP per patient", alone), ("metaprior", learned)):
    print(f"{name:16}  RMSE {scores.rmse:.2f}   NLL {scores.nll:.2f}", end="   ")
    print(f"90% coverage {scores.coverage:.2f}")
difference = learned.per_task["rmse"] - alone.per_task["rmse"]
print(f"paired difference of RMSE {difference.mean():+.2f} ± {sem(difference):.2f}")

figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
axes.hist(difference, bins=20, color="#08519c")
axes.axvline(0, color="#333333", linestyle="--", linewidth=1)
axes.set(xlabel="RMSE: metaprior minus a GP per patient (% hematocrit)", ylabel="patients")
plt.show()

# %%
# A patient left of the dashed line is predicted better with the prior. The means differ by
# less than the picture spreads: for a single patient the prior may well lose, and over
# these fifty the gain in RMSE is not certain. Clearer is the gain in knowing *how sure* to
# be. A GP of five readings is often too sure, which costs it dearly in NLL (the negative
# log likelihood, lower is better), and its 90% intervals hold far fewer readings than 90%.
# [Ten draws](../real-data.md) of such patients say how much of this is the rule.
#
# ## What to watch out for
# - **Coverage on your own patients.** Check it as above: 90% intervals should hold about
#   90% of the readings held back. They hold [88% here on average](../real-data.md) over ten
#   draws.
# - **Readings are taken for a reason.** Blood is drawn more often when something is wrong.
#   The prior describes patients *as they were measured*, not as they would be under another
#   routine.
# - **Transfusions are jumps.** A smooth curve does not know them. If your table has them,
#   start a new task after each.
# - **The five must be typical.** Five patients of one surgeon tell about that surgeon. Draw
#   them as the new ones will come.
