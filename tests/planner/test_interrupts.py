"""Ctrl-C at the one place where Python drops it."""

from __future__ import annotations

import subprocess
import sys

# A process of its own: signals are its alone.
PROGRAM = """
import signal
import time
from planner.interrupts import interrupts_kept

# A shell that starts this in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

class InterruptedAtItsEnd:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def work():
    InterruptedAtItsEnd()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass
    print("went on")

try:
    with interrupts_kept():
        work()
except KeyboardInterrupt:
    print("ended")
"""


def test_an_interrupt_in_a_destructor_is_repeated() -> None:
    """It ends what runs, and Python says nothing of it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ended\n", "")
