"""HTTP mechanisms of all endpoints: keys, limits, validation, error responses, downloads, OpenAPI.

Belongs here: mechanisms that several features share. Belongs elsewhere: endpoints (each feature has its own).
"""
