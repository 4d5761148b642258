"""Numbers with units, for people."""

from __future__ import annotations


def format_bytes(num_bytes: float) -> str:
    """Returns text such as `1.5 GB`, in powers of 1000 as networks and disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
