"""The status page: one HTML text with its style and scripts in it, and the policy that it comes
with.

The page loads nothing but what this node answers, and a browser runs only the script and the style
whose digests the policy names.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources
from io import BytesIO

SCRIPTS = ("page_text.js", "page_chart.js", "page_steer.js", "page.js")
"""In this order one script: each uses only names of those before it while it is loaded."""

LINKS_MAX = 4
"""Links whose picture is kept. A node's link changes with its address, and a picture takes the
event loop 8 ms."""


def load_page() -> tuple[str, str]:
    """Returns the page, and a policy that allows its own script and style, and loads nothing."""
    style = _read("page.css")
    script = "\n".join(['"use strict";', *map(_read, SCRIPTS)])
    page = _read("page.html").replace("<style></style>", f"<style>{style}</style>", 1)
    page = page.replace("<script></script>", f"<script>{script}</script>", 1)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return page, policy


@lru_cache(maxsize=LINKS_MAX)
def qr_code(link: str) -> bytes:
    """Returns a link as a QR code (ISO 18004), an SVG picture."""
    import segno  # here: few nodes are ever asked for a picture

    picture = BytesIO()
    segno.make(link, error="m", micro=False).save(
        picture, kind="svg", scale=4, border=3, light="#fff", dark="#13191f"
    )
    return picture.getvalue()


def _read(name: str) -> str:
    return resources.files("gossamer.node.app.http").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
