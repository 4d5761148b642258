"""The start of the processes that train together, from the first one."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from gossamer.trainer.ipc.messages import Configure, Limits
from gossamer.trainer.ranks import messages
from gossamer.trainer.ranks.followers import START_SECONDS_MAX, Followers
from gossamer.trainer.ranks.group import Group
from gossamer.trainer.ranks.shares import Shares
from gossamer.trainer.ranks.spread import Spread
from gossamer.trainer.resources.device import OWNER_LIMITS, Device

log = logging.getLogger(__name__)


def useful(devices: Sequence[Device], sequences_per_step: int) -> tuple[Device, ...]:
    """The first devices, as many as a step has sequences."""
    used = tuple(devices[:sequences_per_step])
    if len(used) < len(devices):
        log.warning(
            "a step of this run has %d sequences: %d of %d devices have no work",
            sequences_per_step,
            len(devices) - len(used),
            len(devices),
        )
    return used


def start_others(
    configure: Configure,
    devices: Sequence[Device],
    *,
    is_confined: bool,
    on_progress: Callable[[], None],
    on_lost: Callable[[str], None],
) -> Spread:
    """Starts a process for each device but the first, and connects them with this one.

    Args:
        devices: two or more.
        is_confined: whether the others give up the network when they are connected.
        on_progress: is called at every sign of work, in the thread that waits for it.
        on_lost: see `Followers`.

    Raises:
        TrainerError: a process cannot go on, or torch cannot connect them.
        OSError: a process cannot be started.
    """
    first = devices[0].torch_device
    limits = OWNER_LIMITS.share_of(configure.limits or Limits(), len(devices), first)
    # It stays for the life of the processes: NCCL looks at it again and again.
    folder = tempfile.TemporaryDirectory(prefix="devices-", ignore_cleanup_errors=True)
    store_path = os.path.join(folder.name, "store")
    starts = [
        messages.Start(
            rank=rank,
            num_ranks=len(devices),
            store_path=store_path,
            configure=replace(configure, device=str(device.torch_device), limits=limits),
            is_confined=is_confined,
        )
        for rank, device in enumerate(devices)
    ]
    followers = Followers(starts[1:], on_progress, on_lost)
    try:
        followers.hear(messages.Started, START_SECONDS_MAX)
        followers.tell(messages.Connect())
        group = Group(first, 0, len(devices), store_path)
        connected = followers.hear(messages.Connected, START_SECONDS_MAX)
    except BaseException:
        followers.close()
        folder.cleanup()
        raise
    names = {device.name for device in devices}
    shares = Shares(configure.inner.sequences_per_step, len(devices), by_speed=len(names) > 1)
    problems = tuple(dict.fromkeys(each.problem for each in connected if each.problem))
    return Spread(followers, group, shares, folder.cleanup, problems)
