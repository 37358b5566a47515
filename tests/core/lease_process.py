"""A job in a process of its own: does what it is told on stdin, and answers each line with one."""

import os
import subprocess
import sys
import time

from atlas.host import leases

BLOCK = {"match": "H200", "target": {"cuda": 90}}
held = []

for line in sys.stdin:
    word = line.strip()
    if word in ("lease", "spare"):
        taken = getattr(leases, word)("h200", BLOCK)
        held += [taken] if taken else []
        answer = taken.uuid if taken else "none"
    elif word == "wanted":
        answer = str(leases.wanted("h200", BLOCK))
    elif word == "release":
        held[-1].release()
        answer = held.pop().uuid
    elif word == "bear":  # children that outlive this process
        forked = os.fork()
        if not forked:
            time.sleep(600)
            os._exit(0)
        spawned = subprocess.Popen(["sleep", "600"])
        answer = f"{forked} {spawned.pid}"
    print(answer, flush=True)
