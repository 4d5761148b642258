"""The values of settings as people write them, and what is allowed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from gossamer.node.base.address_text import (
    HOST_NAME,
    is_host,
    parse_announced,
    parse_host_port,
    parse_link,
    parse_listen,
)
from gossamer.node.base.durations import parse_serve_after
from gossamer.node.base.limit_periods import PERIODS_MAX, parse_limit
from gossamer.node.base.pausing import parse_idle, parse_programs
from gossamer.node.base.settings.default_places import expanded
from gossamer.node.base.work_hours import parse_work_hours
from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.wire.statement_checks import check_name
from gossamer.trainer.ipc.choices import CompileChoice, MomentChoice
from gossamer.trainer.resources.device_names import problem_of

# A smaller cache would hold only a few of the largest blocks and drop them again at once.
CACHE_BYTES_MIN = 16 * limits.BLOCK_BYTES_MAX
THREADS_MAX = 1024
# More sequences than a card of today takes of the shortest context that a manifest may have.
MICRO_BATCH_MAX = 65_536
# Less than any node with its trainer takes: such a value is a slip of the pen.
LIMIT_BYTES_MIN = 64 * limits.MIB
# An exbibyte, which no disk and no memory has. Messages to the trainer hold integers of 64 bits.
SIZE_BYTES_MAX = 2**60
# No card draws less at work, and none of today draws more.
GPU_WATTS_MIN, GPU_WATTS_MAX = 10, 2000
# A card that does nothing is nearly as warm, and at the upper end cards slow themselves down.
GPU_CELSIUS_MIN, GPU_CELSIUS_MAX = 40, 110
LOG_STEPS_MAX = 1_000_000
# A page that a person reads.
SAMPLE_PROMPTS_MAX = 8
SAMPLE_PROMPT_CHARACTERS_MAX = 500
SAMPLE_ROUNDS_MAX = 1_000_000
# Peers dial at most eight addresses of one peer; half of them are for what the node finds.
ANNOUNCED_MAX = 4
DESKTOP = "desktop"
# A desktop and the chats of a few people.
NOTICES_MAX = 4
# More than the private networks that there are (RFC 1918, 4193, 6598).
OWN_NETWORKS_MAX = 16

Switch = Literal["on", "off"]
RelayMode = Literal["on", "introduce", "off"]
LogFormat = Literal["text", "json"]
LogPlace = Literal["tensorboard", "wandb:offline"]
LogLevel = Literal["debug", "info", "warning", "error"]


SettingValue: TypeAlias = str | int | Path | tuple[str, ...]
"""A checked value of a setting."""

GivenValue: TypeAlias = (
    "str | int | float | bool | Path | date | time | Sequence[GivenValue] "
    "| Mapping[str, GivenValue] | None"
)
"""A value as a flag, a variable or TOML gives it, before any check."""

_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_UNITS = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{letter + "i": 1024**power for power, letter in enumerate("kmgt", start=1)},
}


def parse_size(value: GivenValue) -> int:
    """Parses a number of bytes such as `1500000000`, `1.5GB` or `4GiB`.

    Raises:
        ValueError: the value is no size, or more than any machine has; the message is for people.
    """
    size: float
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            raise ValueError(
                f"{value!r} is not a size; write it as 20GiB, 500MB or a number of bytes"
            )
        size = float(match[1]) * _UNITS[(match[2] or "").lower()]
    if size > SIZE_BYTES_MAX:  # infinite as well, where the text has hundreds of digits
        raise ValueError(f"{str(value)[:32]!r} is more than any machine has: at most 1 EiB")
    return round(size)


Parser: TypeAlias = Callable[[GivenValue], SettingValue]


def _size(low: int, also: str) -> Parser:
    """A number of bytes from a least one on, or 0 where the message says so (`also`)."""

    def parse(value: GivenValue) -> int:
        size = parse_size(value)
        if size < low and (size or not also):
            raise ValueError(
                f"{size:,} bytes are too few: at least {low // limits.MIB}MiB{also}; a size has a "
                "unit, as in 8GiB"
            )
        return size

    return parse


def _require_at_most(most: int, items: Sequence[str], noun: str) -> None:
    if len(items) > most:
        raise ValueError(f"{len(items)} {noun}; allowed: up to {most}")


_LIMIT_SIZE = _size(LIMIT_BYTES_MIN, ", or 0 for no limit")


def _gpu_memory(value: GivenValue) -> str:
    text = str(value).strip()
    gpu_memory_bytes(text, 1)
    return text


def gpu_memory_bytes(text: str, total_bytes: int) -> int:
    """Returns the limit that a text such as `50%` or `8GiB` means for a card of some size.

    Raises:
        ValueError: the text is neither; the message is for people.
    """
    if not text:
        return total_bytes
    share = _SHARE.fullmatch(text)
    if share is not None:
        if not 0 < float(share[1]) <= 100:
            raise ValueError(f"{text!r} is not a share: more than 0% and up to 100%")
        return int(total_bytes * float(share[1]) / 100)
    size = parse_size(text)
    if size < LIMIT_BYTES_MIN:
        raise ValueError(f"{text!r} is too little; write a share such as 50%, or a size as 8GiB")
    return size


def _or_none(low: int, high: int, unit: str) -> Parser:
    """A whole number in a range, or 0 for no limit."""

    def parse(value: GivenValue) -> int:
        number = _integer(0, high)(value)
        assert isinstance(number, int)
        if 0 < number < low:
            raise ValueError(f"{number} {unit} are too few: {low} to {high}, or 0 for no limit")
        return number

    return parse


def _texts(value: GivenValue) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if isinstance(value, (list, tuple)):
        texts = tuple(item for item in value if isinstance(item, str))
        if len(texts) == len(value):
            return texts
    raise ValueError(f'{value!r} is no text in quotes, nor a list of them, such as ["one", "two"]')


def _integer(low: int, high: int) -> Parser:
    def parse(value: GivenValue) -> int:
        try:
            if isinstance(value, (bool, float)):
                raise ValueError
            number = int(str(value))
        except ValueError:
            digits = re.match(r"\d+", str(value).strip())
            hint = f"; write it as {digits[0]}" if digits else ""
            raise ValueError(f"{value!r} is not a whole number{hint}") from None
        if not low <= number <= high:
            raise ValueError(f"{number} is not allowed: {low} to {high}")
        return number

    return parse


def _choice(allowed: tuple[str, ...]) -> Parser:
    def parse(value: GivenValue) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
        return str(value)

    return parse


def _path(value: GivenValue) -> Path:
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError(f"{value!r} is not a path")
    return expanded(value)


def _device(value: GivenValue) -> str:
    text = str(value)
    if problem := problem_of(text):
        raise ValueError(problem)
    return text


def _listen(value: GivenValue) -> tuple[str, ...]:
    addresses = tuple(parse_listen(text) for text in _texts(value))
    if not 0 < len(addresses) <= limits.ADDRESSES_MAX:
        raise ValueError(f"{len(addresses)} addresses; allowed: 1 to {limits.ADDRESSES_MAX}")
    return addresses


def _announce(value: GivenValue) -> tuple[str, ...]:
    addresses = tuple(parse_announced(text) for text in _texts(value))
    _require_at_most(ANNOUNCED_MAX, addresses, "addresses")
    return addresses


def _work_hours(value: GivenValue) -> str:
    text = value if isinstance(value, str) else ", ".join(_texts(value))
    parse_work_hours(text)
    return text


def _name(value: GivenValue) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    name = value.strip()
    try:
        check_name(name)
    except MalformedError as error:
        raise ValueError(str(error)) from None
    if not name.isprintable():
        raise ValueError("a name has characters that are not printable")
    return name


def _sample_prompts(value: GivenValue) -> tuple[str, ...]:
    # One text is one prompt: its spaces and commas belong to it.
    prompts = (value,) if isinstance(value, str) else _texts(value)
    _require_at_most(SAMPLE_PROMPTS_MAX, prompts, "prompts")
    for prompt in prompts:
        if len(prompt) > SAMPLE_PROMPT_CHARACTERS_MAX:
            most = SAMPLE_PROMPT_CHARACTERS_MAX
            raise ValueError(f"a prompt of {len(prompt)} characters; allowed: up to {most}")
    return prompts


def _yes_or_no(value: GivenValue) -> str:
    words = {True: "on", False: "off", "true": "on", "false": "off"}
    is_word = isinstance(value, (bool, str))
    return str(_choice(get_args(Switch))(words.get(value, value) if is_word else value))


def _own_networks(value: GivenValue) -> tuple[str, ...]:
    networks = _texts(value)
    _require_at_most(OWN_NETWORKS_MAX, networks, "networks")
    for text in networks:
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            raise ValueError(f"{error}; write a network as 10.1.0.0/16") from None
    return networks


def _limits(value: GivenValue) -> tuple[str, ...]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value) if isinstance(value, int) else f"{value:g}"
    periods = _texts(value)
    _require_at_most(PERIODS_MAX, periods, "limits")
    for period in periods:
        parse_limit(period)
    return periods


def _notices(value: GivenValue) -> tuple[str, ...]:
    places = _texts(value)
    _require_at_most(NOTICES_MAX, places, "places")
    for place in places:
        if place != DESKTOP and not _is_webhook(place):
            raise ValueError(
                f"{place.split('?')[0]!r} is no place for notices; write {DESKTOP}, or an address "
                "that begins with https:// or http://"
            )
    return places


def _is_webhook(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and " " not in text
    has_host = parts.username is None and is_host(parts.hostname or "")
    return parts.scheme in ("http", "https") and has_port and is_plain and has_host


def _log_to(value: GivenValue) -> tuple[str, ...]:
    allowed = get_args(LogPlace)
    for place in _texts(value):
        if place not in allowed:
            hint = "; `wandb sync` sends what wandb:offline wrote"
            hint = hint if place.startswith("wandb") else ""
            raise ValueError(f"{place!r} is not one of {', '.join(allowed)}{hint}")
    return tuple(dict.fromkeys(_texts(value)))


def _duration(value: GivenValue) -> str:
    text = str(value).strip().lower()
    parse_serve_after(text)
    return text


def _api_hosts(value: GivenValue) -> tuple[str, ...]:
    names = _texts(value)
    for name in names:
        if not HOST_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a host name (without port)")
    return tuple(name.lower().rstrip(".") for name in names)


def _bootstrap(value: GivenValue) -> tuple[str, ...]:
    links = [parse_link(text) for text in _texts(value)]
    for link in links:
        if link.run_id is not None:
            raise ValueError(f"{str(link)!r}: a link with a run id goes to `gossamer join`")
    return tuple(dict.fromkeys(link.address for link in links))


PARSERS: dict[str, Parser] = {
    "state_dir": _path,
    "listen": _listen,
    "announce": _announce,
    "own_networks": _own_networks,
    "up_limit": _limits,
    "down_limit": _limits,
    "port_mapping": _choice(get_args(Switch)),
    "lan": _choice(get_args(Switch)),
    "relay": _choice(get_args(RelayMode)),
    "serve_limit": _limits,
    "relay_limit": _limits,
    "api": lambda value: str(parse_host_port(str(value))),
    "api_hosts": _api_hosts,
    "device": _device,
    "threads": _integer(0, THREADS_MAX),
    "memory_max": _LIMIT_SIZE,
    "disk_max": _LIMIT_SIZE,
    "gpu_memory": _gpu_memory,
    "gpu_power_watts": _or_none(GPU_WATTS_MIN, GPU_WATTS_MAX, "watts"),
    "gpu_temperature_max": _or_none(GPU_CELSIUS_MIN, GPU_CELSIUS_MAX, "degrees"),
    "micro_batch": _integer(0, MICRO_BATCH_MAX),
    "moments": _choice(get_args(MomentChoice)),
    "compile": _choice(get_args(CompileChoice)),
    "work_hours": _work_hours,
    "name": _name,
    "team": _name,
    "sample_prompts": _sample_prompts,
    "sample_rounds": _integer(1, SAMPLE_ROUNDS_MAX),
    "on_battery": _yes_or_no,
    "on_metered": _yes_or_no,
    "pause_for": lambda value: parse_programs(_texts(value)),
    "only_when_idle": lambda value: parse_idle(str(value)),
    "confine_trainer": _choice(get_args(Switch)),
    "cache_bytes": _size(CACHE_BYTES_MIN, ""),
    "log_format": _choice(get_args(LogFormat)),
    "log_level": _choice(get_args(LogLevel)),
    "log_steps": _integer(0, LOG_STEPS_MAX),
    "log_to": _log_to,
    "log_folder": lambda value: str(_path(value)) if value else "",
    "bootstrap": _bootstrap,
    "wait_for_peers": _integer(0, limits.RING_MEMBERS_MAX - 1),
    "serve_after": _duration,
    "notices": _notices,
}
