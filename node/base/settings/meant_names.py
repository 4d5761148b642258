"""The settings that people mean by other names. Only mistakes load this module."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence

_BOTH = ("up_limit", "down_limit")
_MEANT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("upload", "uploads", "uplink", "up", "upstream", "out"), ("up_limit",)),
    **dict.fromkeys(("download", "downloads", "downlink", "down", "downstream"), ("down_limit",)),
    **dict.fromkeys(("", "bandwidth", "traffic", "network", "line"), _BOTH),
    **dict.fromkeys(("memory", "mem", "ram", "host_memory"), ("memory_max",)),
    **dict.fromkeys(("disk", "disc", "storage", "space", "disk_space"), ("disk_max",)),
    **dict.fromkeys(("cpu", "cpus", "cores", "cpu_threads"), ("threads",)),
    **dict.fromkeys(("vram", "gpu_mem", "gpu_ram", "gpu_vram"), ("gpu_memory",)),
    **dict.fromkeys(("power", "watts", "gpu_power", "gpu_watts"), ("gpu_power_watts",)),
    **dict.fromkeys(
        ("temperature", "temp", "gpu_temp", "gpu_temperature", "celsius"), ("gpu_temperature_max",)
    ),
    **dict.fromkeys(("schedule", "hours", "working_hours", "times"), ("work_hours",)),
    **dict.fromkeys(("idle", "when_idle", "only_idle"), ("only_when_idle",)),
    **dict.fromkeys(("port", "listen_port", "address"), ("listen",)),
    **dict.fromkeys(("peers", "seeds", "peer"), ("bootstrap",)),
}
"""Settings by what is left of a name without `_SAYS_LIMIT`: above all those that `gossamer limits`
shows under names of its own."""

_SAYS_LIMIT = frozenset(
    {"max", "maximum", "limit", "limits", "cap", "rate", "speed", "mbit", "mbps", "usage", "use"}
)


def meant_settings(name: str, known: Sequence[str]) -> list[str]:
    """Returns the settings that may be meant by a name that none has: by its meaning, or else the
    one that is written most alike."""
    words = [word for word in re.split(r"[-_ .]+", name.lower()) if word]
    core = "_".join(word for word in words if word not in _SAYS_LIMIT)
    if words and (found := [each for each in _MEANT.get(core, ()) if each in known]):
        return found
    return difflib.get_close_matches("_".join(words), known, n=1)


def hint(name: str, known: Sequence[str], spelt: Callable[[str], str] = str) -> str:
    """Returns a question for people, or an empty text where nothing comes near.

    Args:
        spelt: how the place of the mistake writes a setting.
    """
    found = [spelt(each) for each in meant_settings(name, known)]
    return f"did you mean {' or '.join(found)}?" if found else ""
