"""The hub of this folder's tests."""

from tests.support.model_hub.fixture import hub

__all__ = ["hub"]
