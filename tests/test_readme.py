"""The README's map names every source file, and nothing that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_map_is_complete() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    mapped = set(re.findall(r"^((?:app|worker|ui|benchmarks)/\S+\.py)  +\S", text, flags=re.MULTILINE))
    sources = {
        str(path.relative_to(ROOT))
        for folder in ("app", "worker", "ui", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert mapped == sources


def test_links_and_pictures_exist() -> None:
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}"
