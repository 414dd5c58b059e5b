"""A local hub with one model, for tests of downloads."""
