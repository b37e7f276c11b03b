"""What most users touch: estimators in the manner of scikit-learn, and their files."""

from metaprior.estimators.classifier import MetaGPClassifier
from metaprior.estimators.evaluation import report
from metaprior.estimators.files import load
from metaprior.estimators.regressor import MetaGPRegressor

__all__ = ["MetaGPClassifier", "MetaGPRegressor", "load", "report"]
