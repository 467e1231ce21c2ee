"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Ctrl-C works. A shell starts a background command with SIGINT ignored, and every child inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
