"""The benchmarks' own modules can be imported by their tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # losses.py and what is beside it
