"""Metrics to TensorBoard, MLflow and W&B: one process per sink of a job, started by a keeper."""
