"""Map the signal of a WiFi transmitter in one building from ten readings, with a prior learned mostly in another.

The data are UJIIndoorLoc, in the folder named by METAPRIOR_DATA; if they are missing, the program says what to get.

    python examples/wifi_maps.py [folder for the picture]
"""

import sys
from pathlib import Path

from metaprior import MetaGPRegressor
from metaprior.estimators.baselines import score_per_task_gp
from metaprior.plots import plot_prediction
from metaprior_studies.environments.real_tables import ujiindoorloc

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")

try:
    buildings = ujiindoorloc(target_building=1)
except FileNotFoundError as missing:
    sys.exit(str(missing))
source, target, test = buildings.draw(n_source=40, n_target=5, n_test=20, rng=0, max_samples=12)
print(f"{len(source)} transmitters in building 0, {len(target)} in building 1, {len(test)} test transmitters")

meta = MetaGPRegressor(random_state=0).fit(source, target)
print(meta.transfer_report())

X, y, X_new, y_new = test[0]  # a new transmitter: (x, y) in meters and the floor; dBm
task = meta.adapt(X, y)
mean, (lower, upper) = task.predict(X_new), task.interval(X_new, coverage=0.9)
inside = ((lower <= y_new) & (y_new <= upper)).mean()
print(f"\nfirst test transmitter, {len(y)} readings: {inside:.0%} of {len(y_new)} others in the 90% interval")
i = mean.argmax()
print("strongest at x = {:.0f} m, y = {:.0f} m, floor {:.0f}:".format(*X_new[i]), end=" ")
print(f"{mean[i]:.0f} dBm ({lower[i]:.0f} to {upper[i]:.0f}), measured {y_new[i]:.0f}")

print("\non all test transmitters  RMSE          NLL           90% coverage")
for name, scores in (("metaprior", meta.evaluate(test)), ("scikit-learn GP of each", score_per_task_gp(test))):
    rmse, nll = f"{scores.rmse:.2f} ± {scores.rmse_se:.2f}", f"{scores.nll:.2f} ± {scores.nll_se:.2f}"
    print(f"{name:24}  {rmse:12}  {nll:12}  {scores.coverage:.2f}")

axes = plot_prediction(meta, X, y, X_new, y_new, names=("place", "signal (dBm)"))
axes.figure.savefig(folder / "wifi_maps.png", dpi=120)
