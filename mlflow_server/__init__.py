"""Starts, checks and stops the MLflow server on the store that studies write to. Knows nothing of studies."""
