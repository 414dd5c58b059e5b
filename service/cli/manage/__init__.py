"""Commands for many jobs: list, edit and delete them, submit sweeps. Single jobs are in `commands/`."""
