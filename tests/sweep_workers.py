"""Functions that worker processes load by name."""

import os
import signal
import time
from pathlib import Path


def square(number):
    return number * number


def square_unless_told_to_die(task):
    """Square the number of (number, folder); a file `die-NUMBER` there says how often to die first."""
    number, folder = task
    note = Path(folder) / f"die-{number}"
    if note.exists():
        left = int(note.read_text())
        if left:
            note.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number * number
