"""Lets the tests here import what lies beside them, and the world of whole nodes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "node"))  # node_world.py
sys.path.insert(0, str(Path(__file__).parent))
