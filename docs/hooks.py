"""The mkdocs hook: adds pages that have no file in docs/, and makes links of the repository work.

The documents are written for two readers. On a code host a page links to files of the repository
(`../protocol/SPEC.md`). The site has the same documents at other places, and most of the
repository's files are not in it. So this hook

- adds documents of the repository (ARCHITECTURE.md, protocol/SPEC.md, ...) and pictures of the
  benchmarks to the site, without a copy in docs/;
- adds the reference pages, which `generate_reference` and `generate_diagrams` write from the code;
- lists all decisions in the navigation;
- rewrites each relative link to its place in the site. A link to a file that exists but is not in
  the site becomes plain text. A link to nothing stays as it is, and `mkdocs build --strict` fails.
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent

DOCUMENTS = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    "protocol/SPEC.md": "protocol.md",
}
"""Documents outside of docs/: path in the repository to path in the site."""

PICTURES = "tests/benchmarks/results"
"""Folder whose PNG files are in the site's folder `benchmarks`."""

# [text](target) and ![text](target), with the target's anchor apart; no blanks in targets.
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s#]+)(#[^()\s]*)?\)")
_FENCE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)[ \t]*$", re.MULTILINE | re.DOTALL)


GENERATORS = ("generate_reference", "generate_diagrams")
"""Modules of docs/ whose `pages` writes pages from the code."""


def _generated_pages() -> dict[str, str]:
    """Path in the site to text. mkdocs loads a hook alone, without its folder in `sys.path`."""
    pages: dict[str, str] = {}
    for name in GENERATORS:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        pages |= cast(Callable[[], dict[str, str]], module.pages)()
    return pages


def decisions() -> list[str]:
    """Paths in the site of all decisions, in the order of their numbers."""
    return sorted(f"decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))


def places() -> dict[str, str]:
    """Path in the repository to path in the site, of everything in the site that is a file."""
    found = dict(DOCUMENTS)
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in (".md", ".png"):
            inside = path.relative_to(ROOT / "docs").as_posix()
            found[f"docs/{inside}"] = inside
    for path in sorted((ROOT / PICTURES).glob("*.png")):
        found[f"{PICTURES}/{path.name}"] = f"benchmarks/{path.name}"
    return found


def rewrite_links(text: str, origin: str, site_path: str, known: dict[str, str]) -> str:
    """The text of a page with its links as the site needs them.

    Args:
        origin: path of the page's file in the repository.
        site_path: path of the page in the site.
        known: see `places`.
    """

    def rewritten(match: re.Match[str]) -> str:
        bang, label, target, anchor = match.groups()
        if "://" in target or target.startswith(("mailto:", "/")):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if path in known:
            place = posixpath.relpath(known[path], posixpath.dirname(site_path) or ".")
            return f"{bang}[{label}]({place}{anchor or ''})"
        if path.startswith("docs/reference/"):  # generated: the link is the site's already
            place = posixpath.relpath(
                path.removeprefix("docs/"), posixpath.dirname(site_path) or "."
            )
            return f"{bang}[{label}]({place}{anchor or ''})"
        if (ROOT / path).exists():
            return label
        return match[0]

    pieces, position = [], 0
    for fence in _FENCE.finditer(text):
        pieces += [_LINK.sub(rewritten, text[position : fence.start()]), fence[0]]
        position = fence.end()
    return "".join([*pieces, _LINK.sub(rewritten, text[position:])])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts all decisions behind their overview in the navigation."""
    for section in config.nav or []:
        for entries in section.values():
            if isinstance(entries, list) and "decisions/index.md" in entries:
                entries.remove("decisions/index.md")
                entries.append({"Decisions": ["decisions/index.md", *decisions()]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents of the repository, the pictures, and the generated reference."""
    for origin, site_path in DOCUMENTS.items():
        content = (ROOT / origin).read_text(encoding="utf-8")
        files.append(File.generated(config, site_path, content=content))
    for path in sorted((ROOT / PICTURES).glob("*.png")):
        files.append(File.generated(config, f"benchmarks/{path.name}", abs_src_path=str(path)))
    for site_path, content in _generated_pages().items():
        files.append(File.generated(config, site_path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page."""
    site_path = page.file.src_uri
    origins = {place: origin for origin, place in DOCUMENTS.items()}
    origin = origins.get(site_path, f"docs/{site_path}")
    return rewrite_links(markdown, origin, site_path, places())
