"""The process of a server, and of what one that is not fit to be forked starts afresh; :mod:`.server` starts both."""

import socket
import sys

from . import forked, server

if sys.argv[1] == "serve":
    if (work := server.serve(socket.socket(fileno=int(sys.argv[2])), owner=sys.stdin.fileno())) is not None:
        work()
else:
    forked.became(*map(int, sys.argv[2:]))
