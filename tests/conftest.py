"""Settings of all tests."""

import os
import signal

from hypothesis import settings

# Sentences are looked for whole; tests of narrow terminals say how wide theirs is.
os.environ["COLUMNS"] = "400"

# What a shell starts in the background ignores Ctrl-C; programs that tests stop would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Other work on the machine slows single examples down; that is no failure. The suite always takes the same
# examples, so that it fails for a change only; benchmarks/README.md says how to take others.
settings.register_profile("pipesim", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("pipesim")
