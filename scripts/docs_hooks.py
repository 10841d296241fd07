"""Hooks of the documentation site (mkdocs.yml): text that is made from the code, links out of docs/, drawings.

A page says `<!-- from the code: NAME -->` where text of `docs_pages.py` belongs.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import docs_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
COPIED_PAGES = {
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "concepts/security.md",
    "tests/learning/README.md": "learning.md",
}
"""Documents outside of docs/ that are pages of the site, by their place there."""
SITE_PATHS = {**COPIED_PAGES, "README.md": "index.md"}
"""Where links to these documents lead; those to other files lead to copies of them."""
COPIES = "files"
"""The folder of copied files in the site."""
_ORIGINALS = {page: source for source, page in COPIED_PAGES.items()}
_MARKER = re.compile(r"^<!-- from the code: ([a-z-]+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
_DRAWING = re.compile(r'<img alt="([^"]*)" src="([^"]*\.svg)" ?/?>')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the decisions and the algorithms, of which there are as many as there are."""
    assert config.nav is not None
    sections: dict[str, Any] = {title: entry for row in config.nav for title, entry in row.items()}
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    _set_entry(sections["Concepts"], "Decisions", [f"decisions/{path.name}" for path in decisions])
    pages = [f"reference/algorithms/{name}.md" for name in docs_pages.algorithms()]
    _set_entry(sections["Reference"], "Algorithms", ["reference/algorithms.md", *pages])
    return config


def _set_entry(section: list[dict[str, Any]], title: str, entry: object) -> None:
    next(row for row in section if title in row)[title] = entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in docs_pages.algorithms():
        content = docs_pages.algorithm_page(name)
        files.append(File.generated(config, f"reference/algorithms/{name}.md", content=content))
    for source, page in COPIED_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    pages = files.documentation_pages()
    linked = {_repository_path(file.src_uri, link) for file in pages for link in _LINK.findall(file.content_string)}
    for source in sorted(linked - SITE_PATHS.keys()):
        if not source.startswith("docs/") and (ROOT / source).is_file():
            files.append(File.generated(config, f"{COPIES}/{source}", abs_src_path=str(ROOT / source)))
    return files


def _repository_path(page: str, link: str) -> str:
    """Return what a link on a page leads to, from the root of the repository."""
    folder = posixpath.dirname(_ORIGINALS.get(page, f"docs/{page}"))
    return posixpath.normpath(posixpath.join(folder, link))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def to_site(match: re.Match[str]) -> str:
        path = _repository_path(page.file.src_uri, match[1])
        inside = path.removeprefix("docs/") if path.startswith("docs/") else SITE_PATHS.get(path, f"{COPIES}/{path}")
        return posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or ".")

    markdown = _LINK.sub(to_site, markdown)
    return _MARKER.sub(lambda match: docs_pages.PARTS[match[1]](), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make drawings part of the page, so that they have the colors of its theme."""

    def inline(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.dest_uri), match[2]))
        file = files.get_file_from_path(path)
        if file is None:
            raise PluginError(f"{page.file.src_uri} shows {path}, which does not exist.")
        svg = file.content_string.replace("<svg ", f'<svg class="drawing" role="img" aria-label="{match[1]}" ', 1)
        return f'<span class="scrolling">{svg}</span>'

    return _DRAWING.sub(inline, html)
