"""The CLI's HTTP client: requests, server-sent events, uploads, partial downloads."""
