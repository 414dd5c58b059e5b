"""Where metrics go beside this database: TensorBoard, MLflow, Weights & Biases."""
