"""What stands in the place of a helper's process: it returns the case that it was asked for, or fails."""

import contextlib
import os


def serve(connection, setting):
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            _, case = connection.recv()
            if setting == "dies":
                os._exit(3)
            connection.send([{"case": case, "by": os.getpid()}])
