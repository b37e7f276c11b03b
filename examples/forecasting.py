"""
# Forecasting the rest of a year

**The question.** I know a station's temperatures from January to May. What will the rest of
the year be like, and how much better is that forecast than the average of other years?

A task is a year at a climate station of Colorado, its readings are twelve monthly means of
the daily maximum. There are many stations on the plains and few in the mountains, and we
forecast for the mountains. The data are the monthly climate of Colorado from 1895 to 1997
(`COmonthlyMet` of the R package [fields](https://cran.r-project.org/package=fields)).
"""

# %%
# ## The table

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import sem

from metaprior import MetaGPRegressor, tasks_from_frame
from metaprior_studies.environments.real_tables import find_files
from metaprior_studies.task_panels import draw_tasks

# The next line says what to download if the data are missing.
stations_csv, monthly_csv = find_files("colorado")
elevation = pd.read_csv(stations_csv).set_index("station")["elev_m"]
table = pd.read_csv(monthly_csv)[["station", "year", "month", "tmax"]].dropna()
height = table["station"].map(elevation)
table["region"] = np.select(
    [height < 1600, height >= 2200], ["plains", "mountains"], "between"
)
table = table.groupby(["station", "year"]).filter(lambda year: len(year) == 12)
print(table.head(3).to_string(index=False))

# %%
# Years of one station are alike, so stations, not years, are drawn: 40 on the plains and
# five in the mountains to learn from, with a year of each, and all other mountain stations
# to test on.

shuffled = table[table["region"] != "between"].sample(frac=1, random_state=2026)
one_year = shuffled.drop_duplicates("station")[["station", "year"]]
table = one_year.merge(table.sort_values("month"))
columns = {"task": "station", "x": "month", "y": "tmax", "environment": "region"}
tasks = tasks_from_frame(table, **columns)
plains, mountains = tasks["plains"][:40], tasks["mountains"][:5]
new = tasks["mountains"][5:]
print(
    f"to learn from: {len(plains)} years on the plains, {len(mountains)} in the mountains"
)
print(f"to forecast: {len(new)} years in the mountains")

# %%
# ## The answer
# By default cross-validation gives random readings of a held-out task and asks for the
# others. A forecast knows the past only. `context=("first", 5)` makes the search judge
# every setting by what we want: five months given, seven asked for.

meta = MetaGPRegressor(context=("first", 5), random_state=0).fit(plains, mountains)
print(meta.evaluate(new, context=("first", 5)))

# %%
# Beside it a forecast that needs no model: the average of the mountain years we know in
# each month, shifted by how much the first five months of this year deviate from that
# average.

average = np.mean([year.y for year in mountains], axis=0)  # twelve months


def by_season(X, y, X_new):
    mean = np.interp(X_new[:, 0], range(1, 13), average + np.mean(y - average[:5]))
    return mean, None, None  # without a band


def by_metaprior(X, y, X_new):
    task = meta.adapt(X, y)
    return task.predict(X_new), *task.interval(X_new, coverage=0.9)


tests = [(year.x[:5], year.y[:5], year.x[5:], year.y[5:]) for year in new]
errors = {}
for name, predict in (("seasonal average", by_season), ("metaprior", by_metaprior)):
    errors[name] = np.array(
        [predict(X, y, X_new)[0] - y_new for X, y, X_new, y_new in tests]
    )
rmse = {name: np.sqrt(np.mean(error**2, axis=1)) for name, error in errors.items()}
for name, of_station in rmse.items():
    print(f"{name:16}  RMSE {of_station.mean():.2f} °C")
difference = rmse["metaprior"] - rmse["seasonal average"]
print(f"paired difference of RMSE {difference.mean():+.2f} ± {sem(difference):.2f} °C")

# %%
# ## Three forecasts

names, titles = (
    ("month", "mean daily maximum (°C)"),
    ["station 1", "station 2", "station 3"],
)
draw_tasks(
    tests, [{"metaprior": by_metaprior, "seasonal average": by_season}], names, titles
)
plt.show()

# %%
# ## By how far ahead
# Both forecasts are of the same stations, so their squared errors are compared pair by
# pair, with 95% intervals. Below zero metaprior is better.

ahead = np.arange(1, 8)
gain = errors["metaprior"] ** 2 - errors["seasonal average"] ** 2
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
for (name, error), color in zip(errors.items(), ("#E69F00", "#08519c"), strict=True):
    left.plot(ahead, np.sqrt(np.mean(error**2, axis=0)), "o-", color=color, label=name)
left.margins(y=0.3)
left.set(xlabel="months ahead", ylabel="RMSE (°C)", ylim=(0, None))
left.legend(frameon=False, loc="lower left")
right.errorbar(
    ahead, gain.mean(axis=0), 1.96 * sem(gain), fmt="o", color="#08519c", capsize=3
)
right.axhline(0, color="#333333", linestyle="--", linewidth=1)
right.set(xlabel="months ahead", ylabel="paired difference of squared errors (°C²)")
plt.show()

# %%
# In this draw the seasonal average is the better forecast, by less than two standard
# errors. metaprior loses in August and September, three and four months ahead: in the three
# pictures its smooth curve lies above the August that came. In the other months no
# difference is clear. What the average lacks is a band. metaprior's 90% intervals hold 90%
# of the readings here.
#
# One draw of five mountain years does not tell which forecast is better in general. In a
# [benchmark of ten draws](../results/options.md#forecasts)
# metaprior's RMSE is lower in nine, 2.31 °C against 2.55 °C on average. But there the
# average is that of all training years, those of the plains as well. The average of
# mountain years alone, the rival on this page, was not part of it.
#
# ## What to watch out for
# - **Try the average first.** It takes five lines, as above. If it is as good on stations
#   that you hold back, and you need no band, take it.
# - **Score as you will use it.** With random months given, the model fills gaps instead of
#   looking ahead, which is another question. Pass the same `context` to the constructor, to
#   `evaluate`, and as `--context "first 5"` on the command line.
# - **Keep groups apart.** Other years of the same station among the training tasks would
#   make the test too easy.
# - **Tasks of the same shape.** Every year here has the same season. For one long series
#   with trend and changing seasons use a forecasting library.
# - **The band hardly widens.** The prior has seen all months, so seven months ahead it is
#   about as wide as one month ahead. Beyond the inputs of the training tasks predictions
#   extrapolate, and a warning says so.
