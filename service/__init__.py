"""The HTTP service: it checks, stores and shows jobs. It loads no torch and runs no job."""
