"""Models that answer chat requests, each in a process with an HTTP server of its own."""
