"""One pool of ranks for all tests that need no other; it ends with the test run."""

from __future__ import annotations

import atexit
from functools import cache

from pipesim.executor import RankPool


@cache
def shared_pool() -> RankPool:
    pool = RankPool(8)
    atexit.register(pool.close)
    return pool
