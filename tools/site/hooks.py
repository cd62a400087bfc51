"""Hooks of MkDocs: pages from code and from outside docs/, and links to the repository and its files."""

from __future__ import annotations

import logging
import os
import posixpath
import re
import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.site import reference

LOG = logging.getLogger("mkdocs.hooks.site")
ROOT = Path(__file__).resolve().parent.parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "specs/README.md": "specs.md",
    **{
        path.relative_to(ROOT).as_posix(): f"studies/{path.name}"
        for folder in (ROOT / "benchmarks", ROOT / "benchmarks" / "studies")
        for path in folder.glob("*.md")
    },
}
"""Pages of the repository outside docs/, and their addresses in the site."""
INSIDE = {address: source for source, address in OUTSIDE.items()}
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
WORD = re.compile(r"<code>(?=[^\s<]{1,40}</code>)")
"""Code that is one word: browsers would break it at hyphens and slashes."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link to the repository, if it is known where it is: the project itself names no address."""
    if address := repository():
        config.repo_url = address
        config.repo_name = "/".join(address.split("/")[3:])
    return config


def repository() -> str | None:
    """Return the address of the repository for a browser, without a slash at its end.

    GitHub's workflows say it in their environment. Elsewhere it is the address from which the checkout was
    cloned, if that is one of HTTPS.
    """
    server, name = (os.environ.get(f"GITHUB_{part}") for part in ("SERVER_URL", "REPOSITORY"))
    if server and name:
        return f"{server}/{name}"
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    origin = asked.stdout.strip().removesuffix(".git").rstrip("/")
    # Without the name and the password that an address may have.
    return re.sub(r"//[^/@]*@", "//", origin) if origin.startswith("https://") else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated reference, the pages outside docs/, and each file that a page links to."""
    files.append(File.generated(config, "reference/spec.md", content=reference.spec_page()))
    files.append(File.generated(config, "reference/commands.md", content=reference.commands_page()))
    for source, address in OUTSIDE.items():
        files.append(File.generated(config, address, abs_src_path=str(ROOT / source)))
    linked = {
        target
        for file in files.documentation_pages()
        for target in _targets(file.content_string, _source(file.src_uri))
    }
    for target in sorted(linked):
        if (ROOT / target).is_file() and not target.startswith("docs/") and target not in OUTSIDE:
            files.append(File.generated(config, f"source/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Make links to files of the repository links of the site, and fill in the page of rules.

    The search shows guides before pages that name everything: rules, the changelog and studies.
    """
    address = page.file.src_uri
    source = _source(address)

    def link(match: re.Match[str]) -> str:
        target = _resolved(match[1], source)
        if not (ROOT / target).is_file():
            LOG.warning("%s links to %s, which is not a file of the repository", source, match[1])
            return match[0]
        inside = target.removeprefix("docs/")
        found = OUTSIDE.get(target) or (inside if inside != target else f"source/{target}")
        return posixpath.relpath(found, posixpath.dirname(address) or ".") + (match[2] or "")

    if source in OUTSIDE or address == "rules.md":
        page.meta["search"] = {"boost": 1.0 if source == "README.md" else 0.2}
    parts = CODE.split(markdown)
    text = "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts))
    return reference.rules_page(text) if address == "rules.md" else text


def on_page_content(html: str, **_: object) -> str:
    """Keep each word of code whole, by a class of wide.css."""
    return WORD.sub('<code class="word">', html)


def _source(address: str) -> str:
    """Return the path in the repository of a page of the site."""
    return INSIDE.get(address, f"docs/{address}")


def _resolved(link: str, source: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _targets(markdown: str, source: str) -> set[str]:
    """Return the paths in the repository that a page links to."""
    prose = CODE.sub("", markdown)
    return {_resolved(match[1], source) for match in LINK.finditer(prose)}
