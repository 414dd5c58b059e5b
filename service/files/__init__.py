"""Uploaded files: `/v1/files`."""
