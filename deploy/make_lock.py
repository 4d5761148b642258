#!/usr/bin/env python3
"""Writes the lock files of the image: every package with the digests of all its files.

    .venv/bin/python deploy/make_lock.py

The versions are those of constraints.txt and of image-pins.txt; the digests are those that pip's
index gives for these versions, for every platform and Python. Run it after a change of one of the
two files, in an environment that was installed with constraints.txt, and read the difference.

constraints.txt has no digests itself: with one there pip wants one of everything that it installs,
and refuses the editable install of the README.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
IMAGE_PINS = ROOT / "deploy/image-pins.txt"
LOCK = ROOT / "deploy/requirements.lock"
CUDA_LOCK = ROOT / "deploy/requirements-cuda.lock"
INDEX = "https://pypi.org/simple"
ANSWER_SECONDS_MAX = 60
# The longest list of files, grpcio's, has some 5 MB.
ANSWER_BYTES_MAX = 64 * 1024 * 1024

_HEAD = """\
# Written by deploy/make_lock.py. Every file of every version, so that pip can see that what it
# downloads is what was there when this was written.
"""
_HEADS = {
    LOCK: _HEAD
    + """#
# Without torch, which is in requirements-cuda.lock: builds of it for one kind of device come from
# an index of their own, with other files under the same version.
""",
    CUDA_LOCK: _HEAD + "#\n# torch of pip's own index, and what its build for Linux needs.\n",
}


def pins(path: Path) -> dict[str, str]:
    """Versions by normalised name."""
    found = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            found[canonicalize_name(name)] = version
    return found


def runtime_names() -> set[str]:
    """Normalised names of what gossamer needs to run, that constraints.txt has. A package that only
    some platform or Python needs is among them."""
    pinned = pins(CONSTRAINTS)
    seen: set[tuple[str, str]] = set()
    todo = [("gossamer", "")]
    while todo:
        for need in _needs(*todo.pop()):
            if need[0] in pinned and need not in seen:
                seen.add(need)
                todo.append(need)
    return {name for name, _ in seen}


def _needs(name: str, extra: str) -> Iterator[tuple[str, str]]:
    """What a package with an extra (empty: without one) needs: names, and one of the extras each
    time. Markers of platforms and Pythons count as fulfilled."""
    try:
        requirements = distribution(name).requires or []
    except PackageNotFoundError:
        return
    for text in requirements:
        requirement = Requirement(text)
        extras = re.findall(r'extra == "([^"]+)"', str(requirement.marker or ""))
        if extra in extras if extra else not extras:
            for each in ("", *requirement.extras):
                yield canonicalize_name(requirement.name), each


def wanted() -> dict[Path, dict[str, str]]:
    """The versions that each lock file has to hold."""
    pinned, more = pins(CONSTRAINTS), pins(IMAGE_PINS)
    plain = {name: pinned[name] for name in runtime_names() if name != "torch"}
    plain["setuptools"] = more.pop("setuptools")
    return {LOCK: plain, CUDA_LOCK: {"torch": pinned["torch"], **more}}


def digests(name: str, version: str) -> list[str]:
    """SHA-256 of all files of a version.

    Raises:
        OSError, ValueError: the index does not answer, or does not have the version.
    """
    request = urllib.request.Request(
        f"{INDEX}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
        files = json.loads(answer.read(ANSWER_BYTES_MAX))["files"]
    found = {
        file["hashes"]["sha256"] for file in files if _version(file["filename"]) == Version(version)
    }
    if not found:
        raise ValueError(f"{INDEX} has no file of {name} {version}")
    return sorted(found)


def _version(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None  # formats of long ago


def main() -> None:
    """Exit status 1 if the index does not have something."""
    for path, versions in wanted().items():
        text = _HEADS[path]
        for name, version in sorted(versions.items()):
            try:
                hashes = digests(name, version)
            except (OSError, ValueError, KeyError) as error:
                sys.exit(f"{name} {version}: {error}")
            text += f"{name}=={version}"
            text += "".join(f" \\\n    --hash=sha256:{each}" for each in hashes) + "\n"
        path.write_text(text)
        print(f"{path.relative_to(ROOT)}: {len(versions)} packages")


if __name__ == "__main__":
    main()
