"""What every HTTP request passes: keys, limits, validation, error answers, downloads, OpenAPI.

Belongs here: HTTP mechanisms that several features share. Does not: endpoints (each feature has its own).
"""
