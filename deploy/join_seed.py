#!/usr/bin/env python3
"""Joins the run of a node whose HTTP endpoint is known but not its peer id, as in compose.yaml.

    gossamer-join-seed http://seed:4611 [OPTIONS OF gossamer join]

Asks the endpoint's /api/status for the seed's addresses and run, then becomes `gossamer join`. The
seed is needed only the first time: a node that has a run already goes on with it without the seed.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

MANIFEST_NAMES = ("manifest.msgpack", "manifest.copy")
"""The node goes on with its run as long as one of them is there."""

ATTEMPTS_MAX = 150
RETRY_SECONDS = 2.0
ANSWER_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024


def links_of(endpoint: str) -> list[str]:
    """What `gossamer join` takes: the seed's addresses, each with its run behind a `#`.

    The seed is asked without a proxy, as the node will dial it. Docker's client sets variables of
    proxies in containers, and no proxy knows the other containers.

    Raises:
        OSError, ValueError: no answer, or not a node's.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{endpoint}/api/status", timeout=ANSWER_SECONDS_MAX) as answer:
        status = json.loads(answer.read(ANSWER_BYTES_MAX))
    try:
        addresses, run_id = status["addresses"], status["run_id"]
    except (KeyError, TypeError):
        raise ValueError("the answer is not a node's status") from None
    if not addresses or not run_id:
        raise ValueError("the seed is not in a run yet")
    return [f"{address}#{run_id}" for address in addresses]


def main() -> None:
    """Becomes `gossamer join`; exit status 1 if the seed is needed and does not answer in time."""
    if len(sys.argv) < 2:
        sys.exit("usage: gossamer-join-seed http://HOST:PORT [OPTIONS OF gossamer join]")
    endpoint, options = sys.argv[1].rstrip("/"), sys.argv[2:]
    state_dir = Path(os.environ.get("GOSSAMER_STATE_DIR", "/var/lib/gossamer"))
    has_run = any((state_dir / name).exists() for name in MANIFEST_NAMES)
    links: list[str] = []
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            links = links_of(endpoint)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if has_run:
                print(f"{endpoint} does not answer ({error}); going on without it", flush=True)
            elif attempt < ATTEMPTS_MAX:
                if attempt == 1:
                    print(f"waiting for {endpoint} ({error})", flush=True)
                time.sleep(RETRY_SECONDS)
                continue
            else:
                sys.exit(f"{endpoint} does not answer ({error}): is the seed running?")
        break
    os.execvp("gossamer", ["gossamer", "join", *links, *options])


if __name__ == "__main__":
    main()
