"""Numbers with units, for people."""

from __future__ import annotations


def format_bytes(num_bytes: float) -> str:
    """Returns text such as `1.5 GB`, in powers of 1000 as networks and disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def format_count(number: int) -> str:
    """Returns text such as `2.8 M`, and numbers below 10,000 in full."""
    if number < 10_000:
        return f"{number:,}"
    scaled, unit = number / 1000, "k"
    for larger in ("M", "G", "T"):
        if scaled < 999.95:  # what rounds to 1000.0 has the next unit
            break
        scaled, unit = scaled / 1000, larger
    return f"{scaled:.1f} {unit}"


def format_cores(number: int) -> str:
    """Returns text such as `2 cores`."""
    return f"{number} core" if number == 1 else f"{number} cores"
