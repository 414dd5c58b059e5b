"""Base models of the hub, downloaded before an attempt starts its engine."""
