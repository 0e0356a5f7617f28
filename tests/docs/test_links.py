"""Documents can be followed: links lead somewhere, and decisions have numbers of their own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def _prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


def _anchors(page: Path) -> set[str]:
    """Names of its headings as GitHub makes them."""
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(_prose(page)))
    return {title.replace(" ", "-") for title in titles}


def _broken(page: Path) -> Iterator[str]:
    for link in _LINK.findall(_CODE.sub("", _prose(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in _anchors(target):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Files and headings exist."""
    assert list(_broken(page)) == []


def test_decisions_are_numbered_one_by_one() -> None:
    """No number twice, none left out, and each page has its own in its title."""
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [page.name.partition("-")[0] for page in pages]
    assert numbers == [f"{n:04}" for n in range(1, len(pages) + 1)], Counter(numbers).most_common(2)
    for page, number in zip(pages, numbers, strict=True):
        assert page.read_text().startswith(f"# {number}: ")
