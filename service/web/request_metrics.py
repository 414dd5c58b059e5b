"""Durations of this process's HTTP requests, by method, route and kind of status, for Prometheus.

Boundary: one process since its start. Paths, tenants and keys are not labels, because they are unbounded.
"""

from typing import Any

from prometheus_client import CollectorRegistry, Histogram

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class RequestMetrics:
    """The process's requests. `registry` has the metrics that `/metrics` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "grpo_http_request_duration_seconds",
            "Time from a request to the start of its response, in this process.",
            labelnames=["method", "route", "status"],
            buckets=BUCKETS,
            registry=self.registry,
        )

    def observe(self, scope: Any, status: int, seconds: float) -> None:
        """Record one request; status 0: the client left before the response."""
        method = scope["method"] if scope["method"] in METHODS else OTHER
        kind = f"{status // 100}xx" if status else "none"
        self._seconds.labels(method, route_of(scope) or OTHER, kind).observe(seconds)


def route_of(scope: Any) -> str | None:
    """The route's template, `/v1/files/{file_id}`; None for an unknown path.

    A route of a nested router holds only the end of its template; the rest comes from the path.
    """
    route = scope.get("route")
    template = getattr(route, "path_format", None)
    if template is None:
        return None
    matched = template.format(**scope.get("path_params", {}))
    path: str = scope["path"]
    return path.removesuffix(matched) + template if path.endswith(matched) else str(template)
