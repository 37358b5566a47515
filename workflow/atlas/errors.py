"""The one exception whose message is written for the person at the terminal."""


class AtlasError(Exception):
    """A mistake the user can mend: the message names the file, the key or value, and the remedy.

    The command line prints it as one sentence, without a traceback, and exits non-zero.
    """
