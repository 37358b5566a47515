"""The process of a server, and of what one that is not fit to be forked starts afresh; :mod:`.forking` starts both."""

import socket
import sys

from . import forked, server


def main() -> None:
    """Serve, and in each forked process do what it is for."""
    if sys.argv[1] == "serve":
        listener, of_a_run = socket.socket(fileno=int(sys.argv[2])), sys.argv[3:] == ["run"]
        work = server.serve(listener, sys.stdin.fileno(), of_a_run)
        if work is not None:
            work()
    else:
        forked.became(*map(int, sys.argv[2:]))


main()
