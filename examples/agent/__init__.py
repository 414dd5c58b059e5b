"""An agent that a job can train, as a server."""
