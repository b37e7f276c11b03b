"""The scikit-learn style estimators, and the files they are saved to."""
