"""Predict the hematocrit of patients after cardiac surgery from five readings of each.

Most patients in the training data are from another unit, the medical one. The data are PhysioNet 2012, in the folder
named by METAPRIOR_DATA; if they are missing, the program says what to download.

    python examples/icu_patients.py [folder for the picture]
"""

import sys
from pathlib import Path

from metaprior import MetaGPRegressor
from metaprior.estimators.baselines import score_per_task_gp
from metaprior.plots import plot_prediction
from metaprior_studies.environments.real_tables import physionet_hct

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")

try:
    patients = physionet_hct()
except FileNotFoundError as missing:
    sys.exit(str(missing))
source, target, test = patients.draw(n_source=40, n_target=5, n_test=20, rng=0, max_samples=12)
print(f"{len(source)} medical patients, {len(target)} after cardiac surgery, {len(test)} test patients")

meta = MetaGPRegressor(random_state=0).fit(source, target)
print(meta.transfer_report())

X, y, X_new, y_new = test[0]  # a new patient: hours since admission, percent
task = meta.adapt(X, y)
mean, (lower, upper) = task.predict(X_new), task.interval(X_new, coverage=0.9)
print("\nhours  predicted  90% interval  measured")
for row in zip(X_new[:, 0], mean, lower, upper, y_new, strict=True):
    print("{:5.1f}  {:9.1f}  {:5.1f} to {:4.1f}  {:8.1f}".format(*row))

print("\non all test patients     RMSE          NLL           90% coverage")
for name, scores in (("metaprior", meta.evaluate(test)), ("scikit-learn GP of each", score_per_task_gp(test))):
    rmse, nll = f"{scores.rmse:.2f} ± {scores.rmse_se:.2f}", f"{scores.nll:.2f} ± {scores.nll_se:.2f}"
    print(f"{name:23}  {rmse:12}  {nll:12}  {scores.coverage:.2f}")

axes = plot_prediction(meta, X, y, X_new, y_new, names=("hours since admission", "hematocrit (%)"))
axes.figure.savefig(folder / "icu_patients.png", dpi=120)
