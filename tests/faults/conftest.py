"""The Ray head of tests/integration, shared."""

from tests.integration.conftest import local_head

__all__ = ["local_head"]
