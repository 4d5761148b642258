"""Lets the tests here import the rogue, which lies beside them, and the world of whole nodes."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
sys.path.insert(0, str(FOLDER.parent / "node"))
