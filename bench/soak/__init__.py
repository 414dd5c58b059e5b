"""Runs jobs while processes are killed. Checks whether anything is lost; does not measure speed."""
