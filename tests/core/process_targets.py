"""What child processes of the tests run: imports nothing heavy, so that they start at once."""

import os
import sys
import time

HANG_SECONDS = 600


def echo(connection):
    """Send back what comes."""
    while True:
        connection.send(connection.recv())


def tell(connection, variable):
    """Say what an environment variable is here."""
    connection.send(os.environ.get(variable))


def sleep(connection):
    """Answer nothing."""
    time.sleep(HANG_SECONDS)


def abort(connection):
    """Say why, and die of it."""
    print("Assertion `layout' failed.", file=sys.stderr, flush=True)
    os.abort()
