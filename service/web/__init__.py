"""HTTP mechanisms of all endpoints: keys, limits, validation, error responses, downloads, OpenAPI.

Belongs here: mechanisms that several features share. Does not: endpoints (each feature has its own).
"""
