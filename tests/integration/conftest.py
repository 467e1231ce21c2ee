"""One Ray head for all tests that need one: starting it costs more than most of what is tested on it."""

from collections.abc import Iterator

import pytest

from service.ray_head import LocalHead

NUM_CPUS = 2  # whatever the machine has: the tests' trials are placed by it

_running: list[LocalHead] = []
_users = 0


@pytest.fixture(scope="session")
def local_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHead]:
    """A local head with two CPUs. tests/faults takes this same fixture, and with it this same head."""
    global _users
    if not _running:
        head = LocalHead(tmp_path_factory.mktemp("head"), num_cpus=NUM_CPUS)
        head.start()
        _running.append(head)
    _users += 1
    yield _running[0]
    _users -= 1
    if _users == 0:
        _running.pop().stop()
