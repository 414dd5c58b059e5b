"""Metrics to TensorBoard, MLflow and W&B: a process for each sink of a job, watched by a keeper."""
