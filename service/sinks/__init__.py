"""Copies of metrics in TensorBoard, MLflow, Weights & Biases."""
