"""Which network interface carries this node's own address, so that gloo and NCCL use it and no other.

Left alone, gloo dials the address of the host name, often 127.0.0.1, which no other node can reach.
"""

import os
import socket

# NCCL takes a name as a prefix unless it starts with "=".
_VARIABLES = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}


def own_address_towards(host: str, port: int) -> str:
    """The local address from which this node reaches `host`; on the node that owns `host`, that address itself.

    No packet is sent: connecting a datagram socket only asks the routing table.

    Raises:
        OSError: `host` cannot be resolved or there is no route to it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The name of the interface that carries `address` (eth0, lo, ...), or None where none does."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        # An IPv6 link-local address is listed as fe80::1%eth0.
        if any(entry.address.split("%")[0] == address for entry in entries):
            return name
    return None


def choose_interfaces(master_address: str, master_port: int) -> str:
    """Name the interface towards the master to gloo and NCCL, unless the user has. Returns this node's address."""
    address = own_address_towards(master_address, master_port)
    name = interface_of(address)
    if name is not None:
        for variable, pattern in _VARIABLES.items():
            os.environ.setdefault(variable, pattern.format(name))
    return address
