"""The operations a second that a card can do, by its maker: what utilisation (MFU) is a part of.

Matrix products in half precision, dense, with sums in fp32. A card that is not here, fp32 and CPUs
have no such figure, and no utilisation is told.

The figures are meant to be those of NVIDIA's data sheets, and for GeForce and RTX of its white
papers of the Ampere GA102 and Ada architectures. They were not compared with these papers yet.
"""

from __future__ import annotations

TERA = 1e12

_RATES = (
    ("H200", 989),
    ("H100 PCIe", 756),
    ("H100 NVL", 835),
    ("H100", 989),
    ("A100", 312),
    ("L40S", 362),
    ("L4", 121),
    ("A10", 125),
    ("T4", 65),
    ("V100", 125),
    ("RTX 4090", 165),
    ("RTX 4080", 97.5),
    ("RTX 3090", 71),
    ("RTX 3080", 59.5),
)
"""(words of the name that the driver gives, 10^12 operations a second). A name may have more words:
memory, form, maker. The first line that fits holds."""

_OTHER_MODELS = frozenset({"TI", "SUPER", "LAPTOP", "D", "MOBILE", "MAX-Q"})
"""Words that make another card of the same number."""


def peak_operations(device_name: str, precision: str) -> float | None:
    """Returns the operations a second of one card or several; None if one is not known.

    Args:
        device_name: as the driver gives it, such as `NVIDIA H100 80GB HBM3`; of several cards such
            as `2 x NVIDIA A10, Tesla T4`.
        precision: `Configured.precision`.
    """
    if precision not in ("bf16", "fp16"):
        return None
    total = 0.0
    for each in device_name.split(", "):
        count, _, name = each.rpartition(" x ")
        rate = _rate_of(name)
        if rate is None or (count and not count.isdecimal()):
            return None
        total += rate * int(count or 1)
    return total * TERA


def _rate_of(device_name: str) -> float | None:
    """Returns the 10^12 operations a second of one card; None if they are not known."""
    words = device_name.upper().replace("-", " ").split()
    if _OTHER_MODELS & set(device_name.upper().split()):
        return None
    for name, rate in _RATES:
        wanted = name.upper().split()
        if any(words[start : start + len(wanted)] == wanted for start in range(len(words))):
            return rate
    return None
