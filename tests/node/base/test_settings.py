import contextlib
import math
from pathlib import Path

import pytest

from gossamer.node.base.address_text import (
    HostPort,
    Link,
    parse_announced,
    parse_host_port,
    parse_link,
    parse_listen,
)
from gossamer.node.base.durations import parse_serve_after
from gossamer.node.base.settings.default_places import default_state_dir
from gossamer.node.base.settings.links import Links, parse_links
from gossamer.node.base.settings.setting_values import PARSERS, GivenValue, parse_size
from gossamer.node.base.settings.settings import (
    ConfigError,
    Settings,
    load_settings,
)

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
ADDRESS = f"/ip4/192.0.2.7/tcp/4610/p2p/{PEER}"
RUN_ID = "ab" * 32


def test_defaults() -> None:
    settings = load_settings({}, {})
    assert settings == Settings(state_dir=default_state_dir())


def test_flag_then_environment_then_file_then_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('device = "mps"\nthreads = 3\nlog_level = "error"\napi_hosts = ["Seed."]\n')
    environment = {"GOSSAMER_THREADS": "5", "GOSSAMER_DEVICE": "cuda:1", "UNRELATED": "x"}
    settings = load_settings({"device": "cpu", "threads": None}, environment, file)
    assert (settings.device, settings.threads, settings.log_level) == ("cpu", 5, "error")
    assert settings.api_hosts == ("seed",)
    assert settings.log_format == "text"


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("cache_bytes = 100_000_000\n")
    assert load_settings({}, {"GOSSAMER_CONFIG": str(file)}).cache_bytes == 100_000_000


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("\ufeffthreads = 3\n", encoding="utf-8")
    assert load_settings({}, {}, file).threads == 3


def test_a_micro_batch_is_a_whole_number(tmp_path: Path) -> None:
    assert load_settings({"micro_batch": 8}, {}).micro_batch == 8
    for wrong in (-1, 65_537, "many"):
        with pytest.raises(ConfigError, match="--micro-batch"):
            load_settings({"micro_batch": wrong}, {})


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("GOSSAMER_THREDS", "did you mean GOSSAMER_THREADS?"),
        ("GOSSAMER_UPLIMIT", "did you mean GOSSAMER_UP_LIMIT?"),
        ("GOSSAMER_CONFG", "did you mean GOSSAMER_CONFIG?"),
        ("GOSSAMER_QQQQQQQQ", "is no setting: unset it. `gossamer config show` then lists all"),
        ("GOSSAMER_MAX_UPLOAD", "did you mean GOSSAMER_UP_LIMIT?"),
        ("GOSSAMER_DOWNLOAD_LIMIT", "did you mean GOSSAMER_DOWN_LIMIT?"),
        ("GOSSAMER_BANDWIDTH", "did you mean GOSSAMER_UP_LIMIT or GOSSAMER_DOWN_LIMIT?"),
        ("GOSSAMER_RAM", "did you mean GOSSAMER_MEMORY_MAX?"),
        ("GOSSAMER_threads", "did you mean GOSSAMER_THREADS?"),
    ],
)
def test_a_misspelt_variable_is_a_mistake(variable: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({}, {variable: "3"})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{variable}: ")
    assert reason in problem


def test_variables_that_others_set_are_no_mistakes() -> None:
    """Kubernetes tells every container of a service of this name; the unit file has its own."""
    environment = {
        "GOSSAMER_SEEDS": ADDRESS,
        "GOSSAMER_SERVICE_HOST": "10.0.0.1",
        "GOSSAMER_SERVICE_PORT_P2P": "4610",
        "GOSSAMER_PORT": "tcp://10.0.0.1:4610",
        "GOSSAMER_PORT_4610_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings({}, environment) == Settings(state_dir=default_state_dir())


def test_a_misspelt_key_of_the_file_gets_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("thread = 3\n")
    with pytest.raises(ConfigError, match="thread: no such setting; did you mean threads"):
        load_settings({}, {}, file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("upload = 10", "upload: no such setting; did you mean up_limit?"),
        ("max-upload = 10", "max-upload: no such setting; did you mean up_limit?"),
        ("gpu_temp = 80", "gpu_temp: no such setting; did you mean gpu_temperature_max?"),
        ("[limits]\nup_limit = 10", "write the settings without the line [limits]"),
        (
            "up_limit = [10]",
            """[10] is no text in quotes, nor a list of them, such as ["one", "two"]""",
        ),
        ("up_limit = 10 Mbit", 'text has quotes, as in work_hours = "22:00-07:00"'),
        ("memory_max = 8", "a size has a unit, as in 8GiB"),
        ("cache_bytes = 8", "a size has a unit, as in 8GiB"),
        ('gpu_temperature_max = "80C"', "is not a whole number; write it as 80"),
    ],
)
def test_a_mistake_in_the_file_is_said_with_what_to_do(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f"{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings({}, {}, file)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{file}: ")
    assert reason in problem


def test_lists_come_from_every_source(tmp_path: Path) -> None:
    two = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/4610")
    file = tmp_path / "node.toml"
    file.write_text(f'listen = ["{two[0]}", "{two[1]}"]\n')
    assert load_settings({}, {}, file).listen == two
    assert load_settings({}, {"GOSSAMER_LISTEN": f"{two[0]}, {two[1]}"}).listen == two
    assert load_settings({"listen": two}, {}).listen == two


def test_hours_come_from_every_source(tmp_path: Path) -> None:
    hours = "mon-fri 22:00-07:00, sat-sun 00:00-24:00"
    file = tmp_path / "node.toml"
    file.write_text(f'work_hours = "{hours}"\n')
    assert load_settings({}, {}, file).work_hours == hours
    file.write_text('work_hours = ["mon-fri 22:00-07:00", "sat-sun 00:00-24:00"]\n')
    assert load_settings({}, {}, file).work_hours == hours
    assert load_settings({}, {"GOSSAMER_WORK_HOURS": hours}).work_hours == hours
    assert load_settings({"work_hours": hours}, {}).work_hours == hours
    for wrong in ("22-7", 22, ""):
        with pytest.raises(ConfigError, match="--work-hours"):
            load_settings({"work_hours": wrong}, {})


def test_what_the_owner_does_with_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'on_battery = true\npause_for = ["Google Chrome", "game"]\nonly_when_idle = "5min"\n'
    )
    settings = load_settings({}, {}, file)
    assert settings.on_battery == "on"
    assert settings.pause_for == ("Google Chrome", "game")
    assert settings.only_when_idle == 300
    file.write_text('on_battery = false\nonly_when_idle = "off"\n')
    settings = load_settings({}, {"GOSSAMER_PAUSE_FOR": "game, blender"}, file)
    assert (settings.on_battery, settings.only_when_idle) == ("off", 0)
    assert settings.pause_for == ("game", "blender")
    assert load_settings({}, {}).name == ""
    assert load_settings({}, {"GOSSAMER_NAME": " Ada "}).name == "Ada"
    assert load_settings({}, {}).on_metered == "off"
    file.write_text("on_metered = true\n")
    assert load_settings({}, {}, file).on_metered == "on"
    assert load_settings({"on_battery": "on"}, {"GOSSAMER_ON_BATTERY": "off"}).on_battery == "on"


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("on_battery", "maybe", "'maybe' is not one of on, off"),
        ("on_battery", 1, "1 is not one of on, off"),
        ("name", "x" * 33, "a name has 33 characters; at most 32"),
        ("name", "Ada\x1b[2J", "a name has control characters"),
        ("name", "\u202eadA", "a name has control characters"),
        ("name", 7, "7 is no text"),
        ("on_metered", "sometimes", "'sometimes' is not one of on, off"),
        ("only_when_idle", "5", "'5' is no duration; write it as 90s, 30min"),
        ("only_when_idle", "5s", "5s is not allowed: 10s to 1d"),
        ("pause_for", ("/usr/bin/game",), "'/usr/bin/game' is no name of a program"),
        ("pause_for", ("x" * 65,), "is no name of a program"),
        ("pause_for", tuple(f"game{i}" for i in range(33)), "33 programs; allowed: up to 32"),
    ],
)
def test_what_is_no_such_setting(setting: str, value: GivenValue, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"--{setting.replace('_', '-')}: .*{reason}"):
        load_settings({setting: value}, {})


def test_every_mistake_is_reported_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('log_format = "xml"\ndevise = "cpu"\nthreads = 1.5\n')
    environment = {"GOSSAMER_API": "4611", "GOSSAMER_CACHE_BYTES": "3"}
    with pytest.raises(ConfigError) as caught:
        load_settings({"listen": ("tcp:4610",), "device": "gpu"}, environment, file)
    problems = caught.value.problems
    for place in (
        f"{file}: devise: no such setting",
        f"{file}: log_format: 'xml' is not one of text, json",
        f"{file}: threads: 1.5 is not a whole number",
        "--listen: 'tcp:4610' is not an address to listen on",
        "--device: 'gpu' is not a device",
        "GOSSAMER_API: '4611' is not HOST:PORT",
        "GOSSAMER_CACHE_BYTES: 3 bytes are too few",
    ):
        assert any(problem.startswith(place) for problem in problems), (place, problems)
    assert len(problems) == 7


@pytest.mark.parametrize("content", [None, b"listen = [", b"\xff\xfe"])
def test_a_config_file_that_is_missing_or_broken(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "node.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=str(file)):
        load_settings({}, {}, file)


def test_links() -> None:
    assert parse_link(ADDRESS) == Link(ADDRESS, None)
    link = parse_link(f" {ADDRESS}#{RUN_ID.upper()}\n")
    assert link == Link(ADDRESS, RUN_ID)
    assert parse_link(str(link)) == link
    other = ADDRESS.replace("4610", "4999")
    links = parse_links((ADDRESS, f"{other}#{RUN_ID}", ADDRESS))
    assert links == Links((ADDRESS, other), RUN_ID)


def test_a_link_names_a_settled_head() -> None:
    head = "cd" * 32
    link = parse_link(f"{ADDRESS}#{RUN_ID}@{head.upper()}")
    assert link == Link(ADDRESS, RUN_ID, head)
    assert str(link) == f"{ADDRESS}#{RUN_ID}@{head}"
    assert parse_links((str(link), ADDRESS)) == Links((ADDRESS,), RUN_ID, head)
    with pytest.raises(ConfigError, match="different heads"):
        parse_links((str(link), f"{ADDRESS}#{RUN_ID}@{'ef' * 32}"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("192.0.2.7:4610", "not a peer's address"),
        ("/ip4/192.0.2.7/tcp/4610", "not a peer's address"),
        ("/ip4/192.0.2.777/tcp/4610/p2p/" + PEER, "not an ip4 address"),
        ("/ip4/192.0.2.7/tcp/0/p2p/" + PEER, "not a TCP port"),
        ("/ip4/192.0.2.7/tcp/99999/p2p/" + PEER, "not a TCP port"),
        ("/ip4/0.0.0.0/tcp/4610/p2p/" + PEER, "every address"),
        ("/dns/bad name/tcp/4610/p2p/" + PEER, "begin with"),
        ("/ip4/192.0.2.7/tcp/4610/p2p/" + PEER[:-1], "not a peer id"),
        ("/ip4/192.0.2.7/tcp/4610/p2p/" + PEER[:-1] + "0", "not a peer id"),
        (ADDRESS + "#abc", "run id of 64"),
        (ADDRESS + "#" + RUN_ID + "@12", "run id of 64"),
        ("/ip4/" + "1" * 1000, "too long"),
    ],
)
def test_links_that_cannot_be_right(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_link(text)


def test_links_of_different_runs() -> None:
    with pytest.raises(ConfigError, match="different runs"):
        parse_links((f"{ADDRESS}#{RUN_ID}", f"{ADDRESS}#{'cd' * 32}"))


def test_a_bootstrap_address_must_not_hide_a_run_id() -> None:
    with pytest.raises(ConfigError, match="gossamer join"):
        load_settings({}, {"GOSSAMER_BOOTSTRAP": f"{ADDRESS}#{RUN_ID}"})


@pytest.mark.parametrize("text", ["/ip4/0.0.0.0/tcp/4610", "/ip6/::/tcp/0"])
def test_addresses_to_listen_on(text: str) -> None:
    assert parse_listen(text) == text


@pytest.mark.parametrize("text", ["/ip4/::/tcp/1", "/ip4/1.2.3.4/udp/1", "/dns/a/tcp/1", ""])
def test_addresses_that_cannot_be_listened_on(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_listen(text)


def test_host_and_port() -> None:
    assert parse_host_port("127.0.0.1:0") == ("127.0.0.1", 0)
    assert str(parse_host_port("[::1]:4611")) == "[::1]:4611"
    assert HostPort("localhost", 1) == parse_host_port("localhost:1")
    for text in ("::1:4611", "localhost", ":4611", "localhost:70000", "localhost:x"):
        with pytest.raises(ValueError, match="4611"):
            parse_host_port(text)
    for host in ("a..b", "a" * 64, "-a", "a b", "\u00e9", "[::z]"):
        with pytest.raises(ValueError, match="no name and no address of a host"):
            parse_host_port(f"{host}:80")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1500", 1500), (7, 7), ("4GiB", 4 * 2**30), ("1.5 GB", 1_500_000_000), ("20m", 20_000_000)],
)
def test_sizes(text: GivenValue, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "4 gigabytes", True])
def test_sizes_that_are_none(text: GivenValue) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["99999999999GiB", "9" * 400, f"{'9' * 400} GB", 10**400, 2**61])
def test_a_size_that_no_machine_has_is_refused(text: GivenValue) -> None:
    with pytest.raises(ValueError, match="more than any machine has"):
        parse_size(text)


NUMBERS: tuple[GivenValue, ...] = (
    10**400,
    -(10**400),
    math.inf,
    -math.inf,
    math.nan,
    1e308,
    "9" * 400,
    "9" * 5000,
    f"{'9' * 400}GB",
    f"{'9' * 400}%",
    f"{'9' * 400}m",
    f"{'9' * 400}d",
    f"127.0.0.1:{'9' * 5000}",
    "1e400",
    "inf",
    "nan",
)


@pytest.mark.parametrize("field", PARSERS)
def test_no_number_breaks_a_setting(field: str) -> None:
    """A value that is taken fits into 64 bits: messages to the trainer and metrics hold no more."""
    for number in NUMBERS:
        with contextlib.suppress(ValueError):
            value = PARSERS[field](number)
            assert not isinstance(value, int) or abs(value) < 2**63


@pytest.mark.parametrize("text", ["/ip4/203.0.113.7/tcp/4610", "/dns/node.example.org/tcp/1"])
def test_addresses_to_announce(text: str) -> None:
    assert parse_announced(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/ip4/203.0.113.7/tcp/4610/p2p/" + PEER, "without a peer id"),
        ("/ip4/0.0.0.0/tcp/4610", "every address"),
        ("/ip4/203.0.113.7/tcp/0", "not a TCP port"),
        ("/dns/-/tcp/4610", "begin with"),
        ("203.0.113.7:4610", "not an address to announce"),
    ],
)
def test_addresses_that_no_peer_could_dial_are_not_announced(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_announced(text)


def test_networks_of_the_owner() -> None:
    settings = load_settings({}, {"GOSSAMER_OWN_NETWORKS": "10.0.0.0/8, 100.64.0.0/10 fd00::/8"})
    assert settings.own_networks == ("10.0.0.0/8", "100.64.0.0/10", "fd00::/8")
    for wrong, words in (("10.0.0.1/8", "host bits"), ("office", "10.1.0.0/16")):
        with pytest.raises(ConfigError, match=words):
            load_settings({}, {"GOSSAMER_OWN_NETWORKS": wrong})
    with pytest.raises(ConfigError, match="up to 16"):
        load_settings({}, {"GOSSAMER_OWN_NETWORKS": "10.0.0.0/8 " * 17})


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90s", 90), ("30min", 1800), ("12H", 43_200), ("7d", 604_800)]
)
def test_the_time_for_which_a_finished_run_is_served(text: str, seconds: int) -> None:
    settings = load_settings({"serve_after": text}, {})
    assert parse_serve_after(settings.serve_after) == seconds


def test_a_finished_run_is_served_for_a_day_and_for_ever_where_wanted() -> None:
    assert parse_serve_after(load_settings({}, {}).serve_after) == 86_400
    assert parse_serve_after(load_settings({"serve_after": "forever"}, {}).serve_after) == math.inf
    for wrong in ("1", "h", "-1h", "1h30m", "ever"):
        with pytest.raises(ConfigError, match=r"--serve-after.*0 and forever are allowed, too"):
            load_settings({"serve_after": wrong}, {})
