"""The checks of `gossamer doctor` on a state directory and on what lies in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gossamer.node.base.terminal.printable import printable
from gossamer.node.network.identity import Identity, IdentityError
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.storage.disk_use import existing_parent
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import short

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One line of the report. `advice` says what to do; it is empty if nothing is wrong."""

    name: str
    level: Level
    text: str
    advice: str = ""


def check_state_dir(root: Path, running: bool) -> Iterator[Check]:
    """Checks whether the directory belongs to this user, is writable, and is closed to others."""
    name = "state"
    if not root.exists():
        parent = existing_parent(root)
        if os.access(parent, os.W_OK | os.X_OK):
            yield Check(name, "ok", f"{root} (will be created)")
        else:
            yield Check(
                name, "fail", f"{root} cannot be created in {parent}", "Choose another --state-dir"
            )
        return
    if not root.is_dir() or not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        yield Check(name, "fail", f"{root} cannot be written", "Choose another --state-dir")
        return
    mode = stat.S_IMODE(root.stat().st_mode)
    state_dir = StateDir(root)
    held = "a node runs on it" if running else "no node runs on it"
    if mode & 0o022:
        yield Check(name, "warn", f"{root} can be written by others", f"chmod 700 {root}")
    else:
        yield Check(name, "ok", f"{root} ({held})")
    key = state_dir.identity_path
    if key.exists() and stat.S_IMODE(key.stat().st_mode) & 0o077:
        yield Check("identity", "fail", f"{key} can be read by others", f"chmod 600 {key}")


def check_run(state_dir: StateDir) -> Iterator[Check]:
    """Checks whether the run and the identity of a directory can be used; yields nothing where
    there are none."""
    if state_dir.identity_path.exists():
        try:
            yield Check("identity", "ok", Identity.load_or_create(state_dir.identity_path).peer_id)
        except IdentityError as error:
            yield Check("identity", "fail", str(error))
    try:
        signed = state_dir.read_manifest()
        if signed is not None:
            manifest = open_signed_manifest(signed)
            name = printable(manifest.name)
            yield Check("run", "ok", f"{name} ({short(manifest.run_id)})")
            yield from _check_manifest_files(state_dir)
    except (StateDirError, RemoteProtocolError) as error:
        yield Check(
            "run",
            "fail",
            str(error),
            f"No node can start on {state_dir.root} as it is. A new directory may get its "
            "identity.key",
        )


def _check_manifest_files(state_dir: StateDir) -> Iterator[Check]:
    """Warns of one damaged file of two."""
    damaged = state_dir.manifest_files.damaged()
    if damaged is not None:
        yield Check(
            "run",
            "warn",
            f"{state_dir.root / damaged} is damaged or missing; the other file of the manifest is "
            "whole",
            "Start the node, which writes it again. Look at the disk: other files may be damaged",
        )
