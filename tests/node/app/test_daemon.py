"""What the daemon starts, and refuses, beside the node."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from gossamer.node.app import daemon
from gossamer.node.base.roles import Join
from gossamer.node.base.settings.settings import Settings
from gossamer.node.runs.planning import needs
from gossamer.node.runs.planning.needs import TooLargeError
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.storage.state_dir import StateDir
from tests.support.builders import RUN_ID, manifest, peer


@pytest.mark.parametrize("lan", ["on", "off"])
@pytest.mark.parametrize("port_mapping", ["on", "off"])
def test_a_node_talks_to_its_own_network_only_where_its_owner_lets_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lan: str, port_mapping: str
) -> None:
    runs: list[str] = []

    def replace(name: str) -> None:
        async def run() -> None:
            runs.append(name)

        monkeypatch.setattr(daemon, name, lambda *_args: SimpleNamespace(run=run))

    for name in ("LanNeighbours", "PortMapper", "UpnpGateway"):
        replace(name)
    settings = cast(Any, Settings)(state_dir=tmp_path, lan=lan, port_mapping=port_mapping)
    own = SimpleNamespace(interfaces=list, note_mapping=print)
    transport = SimpleNamespace(peer_id=peer(1), port=4610, own=own)
    node = SimpleNamespace(
        inputs=SimpleNamespace(manifest=SimpleNamespace(run_id=RUN_ID)),
        first=SimpleNamespace(known_peers=KnownPeers(tmp_path / "peers")),
    )

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            daemon._start_in_own_network(nursery, settings, cast(Any, node), cast(Any, transport))

    trio.run(main)
    assert ("LanNeighbours" in runs) == (lan == "on")
    assert ("PortMapper" in runs) == (port_mapping == "on")


@pytest.mark.parametrize(
    ("umask", "folder"), [(0o000, 0o755), (0o002, 0o755), (0o022, 0o755), (0o077, 0o700)]
)
def test_other_users_cannot_write_to_files_of_a_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, umask: int, folder: int
) -> None:
    def main(*_arguments: object) -> int:
        (tmp_path / "blocks").mkdir()
        return 0

    monkeypatch.setattr(daemon, "trio", SimpleNamespace(run=main))
    settings = cast(Any, Settings)(state_dir=tmp_path)
    before = os.umask(umask)
    try:
        assert daemon.run(settings, cast(Any, None), StateDir(tmp_path)) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "blocks").stat().st_mode) == folder


def test_a_run_that_does_not_fit_on_the_disk_is_not_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, free = manifest(), 10**12

    disk = SimpleNamespace(disk_usage=lambda _path: SimpleNamespace(free=free))
    monkeypatch.setattr(needs, "shutil", disk)

    def consent() -> None:
        role = Join(addresses=(), asks_owner=False)
        one = daemon._Daemon(Settings(state_dir=tmp_path), role, StateDir(tmp_path))
        trio.run(one._require_consent, run)

    consent()
    free = 1000
    with pytest.raises(TooLargeError, match=r"of disk here; .* are free in"):
        consent()
