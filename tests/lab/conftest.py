"""Where a lab cannot be built, its tests are skipped with the reason."""

import pytest

from tests.lab.hosts import why_not


@pytest.fixture(scope="session", autouse=True)
def _buildable() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
