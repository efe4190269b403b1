"""Settings of all tests."""

import os
import signal

import pytest
from hypothesis import settings

from pipesim.schedules import auto

# Sentences are looked for whole; tests of narrow terminals say how wide theirs is.
os.environ["COLUMNS"] = "400"

# What a shell starts in the background ignores Ctrl-C; programs that tests stop would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Other work on the machine slows single examples down; that is no failure. The suite always takes the same
# third of the examples, so that it fails for a change only; benchmarks/README.md says how to take all.
settings.register_profile("pipesim", deadline=None, derandomize=True, max_examples=34)
settings.register_profile("random", deadline=None)
settings.load_profile("pipesim")


SHORT_SEARCH = 2_000_000
"""Timed actions of a search for an order: tests of verbs are not about how good an order it finds."""


@pytest.fixture(scope="session", autouse=True)
def short_searches():
    whole, auto.DEFAULT_BUDGET = auto.DEFAULT_BUDGET, SHORT_SEARCH
    yield whole
    auto.DEFAULT_BUDGET = whole


@pytest.fixture
def whole_searches(short_searches, monkeypatch):
    """As a user has it."""
    monkeypatch.setattr(auto, "DEFAULT_BUDGET", short_searches)


def pytest_collection_modifyitems(items):
    """Tests that share a pool of ranks come first, so that one of several workers has them all."""
    items.sort(key=lambda item: "shared_pool" not in vars(item.module))
