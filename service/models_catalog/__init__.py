"""Models that a job may start from, and those that jobs made: `/v1/models`."""
