"""A guessing game behind an OpenEnv server, and a job that learns it."""
