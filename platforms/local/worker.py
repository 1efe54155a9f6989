"""A worker of a simulated slice; its death is the loss of the slice.

It stands in for the Pathways workers of one TPU slice, or of one of its VMs. It computes nothing, but keeps a
connection to each process that uses the slice, so that a SIGKILL shows there at once, as a broken channel shows in the
Pathways proxy. Run as a script with the standard library only, so that it starts in a few hundredths of a second.
"""

import argparse
import json
import os
import selectors
import socket
from pathlib import Path


def main() -> None:
    """Accept connections until killed: each gets one JSON line (slice, vm, generation, pid) and is kept open."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--slice", type=int, required=True)
    parser.add_argument("--vm", type=int, default=0)
    parser.add_argument("--generation", type=int, default=1)
    args = parser.parse_args()
    Path(args.socket).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = f"{args.socket}.{os.getpid()}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(temporary)
    server.listen(64)
    os.rename(temporary, args.socket)  # noqa: PTH104 - the socket appears only once it answers
    who = {"slice": args.slice, "vm": args.vm, "generation": args.generation, "pid": os.getpid()}
    hello = json.dumps(who).encode() + b"\n"
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            connection = key.fileobj
            if connection is server:
                client, _ = server.accept()
                try:
                    client.sendall(hello)
                    selector.register(client, selectors.EVENT_READ)
                except OSError:
                    client.close()
            elif isinstance(connection, socket.socket):
                try:
                    gone = not connection.recv(64)
                except OSError:
                    gone = True
                if gone:
                    selector.unregister(connection)
                    connection.close()


if __name__ == "__main__":
    main()
