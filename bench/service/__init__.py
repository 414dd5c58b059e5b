"""Load on the API and the queue, and the time from a request to a first step. Does not train models."""
