"""Root gives orders to the node of another user, as to that of a service for all users."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gossamer.node.heads.extensions import ExtensionFile
from gossamer.node.heads.rollbacks import RollbackFiles
from gossamer.node.network.identity import Identity
from gossamer.node.storage.admission_files import ExpulsionFile, RollFile
from gossamer.node.storage.owner_orders import write_limits
from gossamer.protocol.ids import public_key_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.heads.rollback_signers import RollbackSigners
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.invitation_messages import Revocation
from gossamer.protocol.wire.statements import Extension, Rollback
from tests.support.builders import manifest

ME = Identity.from_seed(bytes(32))
KEY = public_key_of(ME.peer_id)
NODES_USER, NODES_GROUP = 54_321, 54_322
RUN: Manifest = manifest()


def roll_back(root: Path) -> None:
    signed = seal(Rollback(b"u" * 32, b"p" * 32, 3), ME.peer_id, RUN.run_id, ME.sign)
    RollbackFiles(root, RUN.run_id, RollbackSigners.of(RUN)).write(signed)


def extend(root: Path) -> None:
    signed = seal(Extension(1, 1000, 100), ME.peer_id, RUN.run_id, ME.sign)
    ExtensionFile(root, RUN).write(signed)


ORDERS: dict[str, Callable[[Path], object]] = {
    "revoke": lambda root: RollFile(root).order(Revocation(KEY, KEY, bytes(64))),
    "vote": lambda root: ExpulsionFile(root).wish(KEY),
    "limits": lambda root: write_limits(root / "limits", {"upload": "10"}),
    "rollback": roll_back,
    "extend": extend,
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("order", ORDERS)
def test_the_node_can_read_and_remove_what_root_leaves_for_it(tmp_path: Path, order: str) -> None:
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    os.chown(root, NODES_USER, NODES_GROUP)
    ORDERS[order](root)
    found = [path.lstat() for path in root.rglob("*")]
    assert found
    assert {(each.st_uid, each.st_gid) for each in found} == {(NODES_USER, NODES_GROUP)}


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_user_leaves_for_its_own_node_stays_its_own(tmp_path: Path, order: str) -> None:
    ORDERS[order](tmp_path)
    found = [path.lstat().st_uid for path in tmp_path.rglob("*")]
    assert found
    assert set(found) == {os.geteuid()}
