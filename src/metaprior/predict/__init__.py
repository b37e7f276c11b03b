"""Predictions for new tasks, one or many at a time, averaged over particles and members of the ensemble."""
