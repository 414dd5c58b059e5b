"""A real OpenEnv server for tests."""
