"""Sends metrics to TensorBoard, MLflow and W&B. A keeper starts one process per sink of a job."""
