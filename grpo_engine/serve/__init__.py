"""A model that answers chat requests, in a process of its own that a worker starts.

Belongs here: the protocol with the worker, text streaming, answering.
Belongs elsewhere: HTTP (`service/serving/`).
"""
