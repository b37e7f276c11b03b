"""
# WiFi maps of another building

**The question.** I measured the WiFi of one building thoroughly. In the next one I can
afford ten readings per transmitter. What do its maps look like, and where should I measure
next?

A task is a transmitter. Its inputs are a position in meters and a floor, its output is the
signal in dBm, which falls with the distance. Forty transmitters of building 0 and five of
building 1 are known. The data are
[UJIIndoorLoc](https://archive.ics.uci.edu/dataset/310/ujiindoorloc), a university in
Castellón.
"""

# %%
# ## The data
# The table has one row per transmitter and position where it was heard. `ujiindoorloc`
# reads it and takes two precautions that your own data may need too. Positions are measured
# from the center of each building, because a prior of campus coordinates would mean nothing
# in another building. And most radios send under several names with almost equal maps:
# names of one radio are never split between the transmitters we learn from and those we
# test on.

import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import sem

from metaprior import ExtrapolationWarning, MetaGPRegressor
from metaprior.estimators.comparison import score_per_task_gp
from metaprior_studies.environments.real_tables import ujiindoorloc

# The next line says what to download if the data are missing.
buildings = ujiindoorloc(target_building=1, n_context=10)
numbers = {"n_source": 40, "n_target": 5, "n_test": 30, "max_samples": 12}
source, target, test = buildings.draw(**numbers, rng=0)
X, y = source[0]
print(f"building 0: {len(source)} transmitters")
print(f"building 1: {len(target)} transmitters, and {len(test)} new ones")
print(f"a reading at (x, y, floor) = {X[0].round(1)}: {y[0]:.0f} dBm")

# %%
# ## The answer

# A few positions lie farther out than any that was learned from:
warnings.simplefilter("ignore", ExtrapolationWarning)
meta = MetaGPRegressor(random_state=0).fit(source, target)
print(meta.transfer_report(), end="\n\n")
alone, learned = score_per_task_gp(test), meta.evaluate(test)
for name, scores in (("a GP per transmitter", alone), ("metaprior", learned)):
    print(f"{name:20}  RMSE {scores.rmse:.1f} dBm   NLL {scores.nll:.2f}", end="   ")
    print(f"90% coverage {scores.coverage:.2f}")
difference = learned.per_task["rmse"] - alone.per_task["rmse"]
print(f"paired difference of RMSE {difference.mean():+.2f} ± {sem(difference):.2f} dBm")

# %%
# The prior is better than a Gaussian process of ten readings alone, and its intervals are
# wide enough. How much of that comes from building 0 is not clear: the first lines say that
# the five transmitters of building 1 may have taught as much.
#
# ## A map, and what it does not know
# A map can be checked only where there are readings. So, of the 30 new transmitters, here
# is the one that was heard at most positions, on the floor where it was heard most. Dots
# are readings that were held back, colored by what was measured: where a dot vanishes into
# the map, the map is right. On the right, the standard deviation.

X, y, X_new, y_new = max(test, key=lambda task: len(task.y_query))
floor = np.bincount(X_new[:, 2].astype(int)).argmax()
here, given = X_new[:, 2] == floor, X[:, 2] == floor
known = np.concatenate([X_new[here, :2], X[given, :2]])
left, bottom = known.min(axis=0) - 2  # meters
right, top = known.max(axis=0) + 2
along, across = np.meshgrid(np.linspace(left, right, 60), np.linspace(bottom, top, 60))
places = np.column_stack([along.ravel(), across.ravel(), np.full(along.size, floor)])
maps = meta.adapt(X, y).predict(places, return_std=True)

figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="compressed")
titles, colors = (
    ("predicted signal (dBm)", "standard deviation (dBm)"),
    ("viridis", "magma"),
)
for axes, values, title, color in zip(panels, maps, titles, colors, strict=True):
    image = axes.pcolormesh(along, across, values.reshape(along.shape), cmap=color)
    axes.plot(*X[given, :2].T, "s", color="#d94801", markeredgecolor="white", label="given")
    axes.set(title=title, xlabel="meters from the center of the building", aspect="equal")
    figure.colorbar(image, ax=axes, shrink=0.8)
    if axes is panels[0]:  # the same colors for what was measured
        held_back = {"s": 30, "edgecolor": "white", "linewidth": 0.6, "label": "held back"}
        image.set_clim(y_new[here].min(), y_new[here].max())
        axes.scatter(
            *X_new[here, :2].T, c=y_new[here], cmap=color, norm=image.norm, **held_back
        )
panels[0].set_ylabel("meters")
handles, labels = panels[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %%
# Ten readings are few for a building of several floors, and on this one there are two. The
# map finds a quiet side on the left and a loud one on the right, and misses single places.
# It says so: a standard deviation of 10 dBm and more away from the readings.
#
# ## Where to measure next
# Where the prediction is least certain: of the positions that can be reached, take the one
# with the largest standard deviation.

mean, std = meta.adapt(X, y).predict(X_new, return_std=True)
place = std.argmax()
print("next: x = {:.0f} m, y = {:.0f} m, floor {:.0f}".format(*X_new[place]))
print(f"expected {mean[place]:.0f} ± {std[place]:.0f} dBm, measured {y_new[place]:.0f} dBm")

# %%
# ## What to watch out for
# - **Coordinates must mean the same.** A prior of raw campus coordinates learns where
#   building 0 stands. Measure from the center or the entrance of each building, in the same
#   units and directions.
# - **One radio, several names.** If one name of a radio is known and another is tested,
#   scores are flattering. Keep together what belongs together: names of a radio, years of a
#   station, siblings of a family.
# - **Not heard is not missing at random.** The table has only positions where a transmitter
#   was heard, so maps are too loud far away. If your scanner reports silence, enter the
#   noise floor.
# - **Walls are edges.** The prior is smooth. It will blur the signal across a thick wall.
