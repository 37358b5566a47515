"""The process of a server, and of what one that is not fit to be forked starts afresh; :mod:`.forking` starts both."""

import socket
import sys

from . import forked, server


def main() -> None:
    """Serve, and in each forked process do what it is for."""
    if sys.argv[1] == "serve":
        work = server.serve(socket.socket(fileno=int(sys.argv[2])), owner=sys.stdin.fileno())
        if work is not None:
            work()
    else:
        forked.became(*map(int, sys.argv[2:]))


main()
