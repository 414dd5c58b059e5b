"""A job's configuration: the pydantic models that the API and the engine share.

Belongs here: fields, ranges, defaults and recipes.
Belongs elsewhere: checks that need a dataset, a model or torch.
"""
