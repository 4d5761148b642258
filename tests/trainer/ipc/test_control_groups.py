"""The limits of a container, a service and a job of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.trainer.ipc.control_groups import (
    GroupMemory,
    group_cores,
    group_memory,
    group_processes,
)

JOB = "system.slice/slurmstepd.scope/job_7"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_a_machine_without_limits(tmp_path: Path) -> None:
    assert group_memory(tmp_path) is None
    assert group_cores(tmp_path) is None
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice",
            "sys/fs/cgroup/user.slice/memory.max": "max",
            "sys/fs/cgroup/user.slice/cpu.max": "max 100000",
        },
    )
    assert group_memory(tmp_path) is None
    assert group_cores(tmp_path) is None


@pytest.mark.parametrize("limited", [JOB, f"{JOB}/step_0/user/task_0"])
def test_a_job_has_the_limits_of_all_groups_above_it(tmp_path: Path, limited: str) -> None:
    group = f"sys/fs/cgroup/{limited}"
    write(
        tmp_path,
        {
            "proc/self/cgroup": f"0::/{JOB}/step_0/user/task_0",
            f"sys/fs/cgroup/{JOB}/step_0/memory.max": "9000",
            f"sys/fs/cgroup/{JOB}/step_0/memory.current": "1000",
            f"sys/fs/cgroup/{JOB}/step_0/cpu.max": "1600000 100000",
            f"{group}/memory.max": "4000",
            f"{group}/memory.current": "3500",
            f"{group}/memory.stat": "anon 1500\ninactive_file 1200\nactive_file 800",
            f"{group}/cpu.max": "400000 100000",
        },
    )
    assert group_memory(tmp_path) == GroupMemory(limit=4000, free=2500)
    assert group_cores(tmp_path) == 4


def test_the_fullest_group_says_what_is_free(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/all/one",
            "sys/fs/cgroup/all/memory.max": "9000",
            "sys/fs/cgroup/all/memory.current": "8900",
            "sys/fs/cgroup/all/one/memory.max": "4000",
            "sys/fs/cgroup/all/one/memory.current": "1000",
        },
    )
    assert group_memory(tmp_path) == GroupMemory(limit=4000, free=100)


@pytest.mark.parametrize(
    ("high", "most", "found"),
    [
        ("4000", "9000", GroupMemory(limit=4000, free=3000)),
        ("9000", "4000", GroupMemory(limit=4000, free=3000)),
        ("4000", "max", GroupMemory(limit=4000, free=3000)),
        ("max", "max", None),
    ],
)
def test_memory_above_which_a_group_is_slowed_down_does_not_count(
    tmp_path: Path, high: str, most: str, found: GroupMemory | None
) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/one",
            "sys/fs/cgroup/one/memory.high": high,
            "sys/fs/cgroup/one/memory.max": most,
            "sys/fs/cgroup/one/memory.current": "1000",
        },
    )
    assert group_memory(tmp_path) == found


V1_LIMITS = {
    "memory.limit_in_bytes": "4000",
    "memory.usage_in_bytes": "3500",
    "memory.stat": "inactive_file 1\ntotal_inactive_file 1200\ntotal_active_file 800",
}


@pytest.mark.parametrize("tree", ["cpu", "cpu,cpuacct"])
def test_version_1_has_a_tree_for_each_resource(tmp_path: Path, tree: str) -> None:
    group = "slurm/uid_1000/job_7"
    write(
        tmp_path,
        {
            "proc/self/cgroup": f"5:{tree}:/{group}\n4:memory:/{group}/step_0\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "70000",
            **{f"sys/fs/cgroup/memory/{group}/{name}": text for name, text in V1_LIMITS.items()},
            f"sys/fs/cgroup/{tree}/cpu.cfs_quota_us": "-1",
            f"sys/fs/cgroup/{tree}/cpu.cfs_period_us": "100000",
            f"sys/fs/cgroup/{tree}/{group}/cpu.cfs_quota_us": "250000",
            f"sys/fs/cgroup/{tree}/{group}/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/unified/cgroup.procs": "",
        },
    )
    assert group_memory(tmp_path) == GroupMemory(limit=4000, free=2500)
    assert group_cores(tmp_path) == 2


def test_a_container_of_version_1_sees_its_group_at_the_top(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/0123abcd",
            **{f"sys/fs/cgroup/memory/{name}": text for name, text in V1_LIMITS.items()},
        },
    )
    assert group_memory(tmp_path) == GroupMemory(limit=4000, free=2500)


def test_a_group_outside_of_the_namespace_is_left_out(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../other",
            "sys/fs/cgroup/memory.max": "4000",
            "sys/fs/cgroup/memory.current": "1000",
            "sys/fs/cgroup/other/memory.max": "10",
        },
    )
    assert group_memory(tmp_path) == GroupMemory(limit=4000, free=3000)


def test_what_is_no_number_is_no_limit(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"sys/fs/cgroup/memory.max": "many", "sys/fs/cgroup/cpu.max": "100000 0"},
    )
    assert group_memory(tmp_path) is None
    assert group_cores(tmp_path) is None


@pytest.mark.parametrize(
    ("line", "tree"), [("0::/all/one", "sys/fs/cgroup"), ("8:pids:/all/one", "sys/fs/cgroup/pids")]
)
def test_the_processes_that_a_group_may_still_have(tmp_path: Path, line: str, tree: str) -> None:
    assert group_processes(tmp_path) is None
    write(
        tmp_path,
        {
            "proc/self/cgroup": line,
            f"{tree}/all/pids.max": "100",
            f"{tree}/all/pids.current": "76",
            f"{tree}/all/one/pids.max": "max",
            f"{tree}/all/one/pids.current": "4",
        },
    )
    assert group_processes(tmp_path) == 24
    write(tmp_path, {f"{tree}/all/one/pids.max": "3"})
    assert group_processes(tmp_path) == 0
