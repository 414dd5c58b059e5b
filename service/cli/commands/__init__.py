"""The `grpo` commands that talk to the HTTP interface, one module for each group."""
