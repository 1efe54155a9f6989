"""Free ports for servers that are started later, or that go away for a while."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_ports(count: int) -> list[int]:
    """Free loopback ports below the kernel's range for clients, which could else take one before its server has it."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"there are no {count} free ports between 20000 and 32000")
