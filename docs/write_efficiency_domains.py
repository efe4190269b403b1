"""Renew what efficiency presets know of their own errors: every fit again, its domains and half-widths."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from pipesim.evidence.calibration.presets_from_tables import calibrate_published
from pipesim.evidence.calibration.recipes import RECIPES

TARGET = Path(__file__).parents[1] / "pipesim" / "scenario" / "presets" / "domains.yaml"
_HEAD = """\
# What the rows of each efficiency preset cover, and how far off predictions were there: half-widths of the
# log of measured over predicted that hold for nine of ten rows; see pipesim.scenario.domain. Written by
# docs/write_efficiency_domains.py from `pipesim calibrate --published`.

"""


def written(domains: dict[str, list[dict[str, object]]]) -> str:
    """Text of the file."""
    parts = [
        yaml.safe_dump({name: found}, sort_keys=False, width=110, default_flow_style=None)
        for name, found in domains.items()
    ]
    return _HEAD + "\n".join(parts)


if __name__ == "__main__":
    known = yaml.safe_load(TARGET.read_text()) if TARGET.exists() else {}
    for name in sys.argv[1:] or RECIPES:
        known[name] = [one.model_dump(mode="json") for one in calibrate_published(RECIPES[name]).domains]
    TARGET.write_text(written({name: known[name] for name in RECIPES if known.get(name)}))
