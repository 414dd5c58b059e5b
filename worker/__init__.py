"""Workers claim jobs, run engines as child processes and publish the results."""
