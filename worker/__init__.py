"""Workers: they claim jobs, run engines as child processes and publish what comes back."""
