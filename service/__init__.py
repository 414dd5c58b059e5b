"""The HTTP service: validates, stores and serves jobs. It loads no torch and runs no job."""
