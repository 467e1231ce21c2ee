"""What holds for every test."""

import signal

import pytest

# Files that take minutes, the longest first: run two at a time, none of them is left over for the end.
LONGEST = ("test_demo.py", "test_run_study_faults.py", "test_server_side.py", "test_standalone.py", "test_dispatch.py")


def pytest_configure() -> None:
    """Ctrl-C works. A shell starts a background command with SIGINT ignored, and every child inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest first; the order of all others, and within a file, stays as it was shuffled."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))
