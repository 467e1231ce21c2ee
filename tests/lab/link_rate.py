"""What the link between two hosts of a lab carries, asked with a connection of our own (see `tcp_rate`)."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.lab.hosts import Host

_SENDER: Final = Path(__file__).with_name("tcp_rate.py")
_PORT: Final = 5201
_SECONDS: Final = 1.0


def link_rate(sender: Host, receiver: Host, seconds: float = _SECONDS) -> float:
    """Mbit/s of payload that one TCP connection carries from one host to the other."""
    for host in (sender, receiver):
        (host.folder / _SENDER.name).write_bytes(_SENDER.read_bytes())
    listening = receiver.start([sys.executable, _SENDER.name, "receive", str(_PORT)], log=subprocess.DEVNULL)
    try:
        command = [sys.executable, _SENDER.name, "send", receiver.address, str(_PORT), str(seconds)]
        return float(sender.run(command).stdout)
    finally:
        listening.wait()
