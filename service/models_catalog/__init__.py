"""Base models and the models that jobs produced: `/v1/models`."""
