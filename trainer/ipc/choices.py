"""The names of what an owner can choose for the trainer.

Apart from the messages, because the settings of every command name them.
"""

from __future__ import annotations

from typing import Literal

MomentFormat = Literal["fp32", "bf16", "8bit"]
"""What an optimiser keeps its moments in, see `moments`; from the one with the most bytes."""

MomentChoice = Literal["auto", "fp32", "bf16", "8bit"]
"""The owner's choice; with `auto` it is what fits, see `fitting_moments`."""

CompileChoice = Literal["auto", "on", "off"]
"""Whether the layers are compiled; with `auto` on cards, see `compiling.compiler`."""
