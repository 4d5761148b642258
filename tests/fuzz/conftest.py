"""Lets the tests here import what lies beside them, and the builders of valid protocol objects."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
for other in ("protocol", "node"):  # builders.py and mutations.py; node_world.py
    sys.path.insert(0, str(FOLDER.parent / other))
