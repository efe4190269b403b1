"""Every published set, with the real order of its schedules, within half a minute."""

import pytest

from pipesim.evidence.published import SETS, judge
from pipesim.prediction import Programs

LIMIT_S = 30


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_judged_within_half_a_minute(benchmark, name):
    report = benchmark.pedantic(lambda: judge(SETS[name], programs=Programs()), rounds=1)
    assert len(report.rows) == len(SETS[name].rows())
    assert benchmark.stats.stats.max < LIMIT_S
