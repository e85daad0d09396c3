"""docs/llms.txt: a list of every page of the site, with links that hold in the repository and on the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from source_files import ROOT

SITE = """site_name: A site
site_description: What it is.
nav:
  - Start:
      - index.md
      - Other: other.md
      - Deeper: [deep.md]
markdown_extensions:
  - pymdownx.emoji: { emoji_index: !!python/name:no.such.module }
"""


@pytest.fixture(scope="module")
def llms():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import docs_llms

        yield docs_llms
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "mkdocs.yml").write_text(SITE)
    (tmp_path / "docs").mkdir()
    for name in ("index", "other", "deep"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# The page {name}\n\nIt says a.b. And more.\n")
    return tmp_path


def test_the_list_has_the_known_form(llms: ModuleType, site: Path):
    assert llms.llms_page(site) == (
        "# A site\n\n> What it is.\n\n## Start\n\n"
        "- [The page index](index.md): It says a.b.\n- [Other](other.md): It says a.b.\n"
        "- [The page deep](deep.md): It says a.b.\n"
    )


def test_a_page_of_the_navigation_that_is_not_there_is_named(llms: ModuleType, site: Path):
    (site / "docs/deep.md").unlink()
    with pytest.raises(SystemExit, match=r"docs/deep\.md, which is not there"):
        llms.llms_page(site)


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("<!-- Generated. -->\n\n# A\n\nFirst [one](two.md) and\nmore. Then two.", "First one and more."),
        ("# A\n\n```bash\nrun it\n\nagain\n```\n\n![image](a.svg)\n\n| a |\n\nProse at last.", "Prose at last."),
        ("# A\n\n`mcprl.tools` is e.g. this. mcprl has more.", "`mcprl.tools` is e.g. this."),
        ("# A\n\nDoes it? Yes.", "Does it?"),
        ("# A\n\n- only\n- a list", ""),
    ],
)
def test_a_page_is_told_by_the_first_sentence_of_its_prose(llms: ModuleType, text: str, summary: str):
    assert llms.heading_and_summary(text) == ("A", summary)


def test_every_page_of_the_navigation_is_listed_and_has_a_sentence(llms: ModuleType):
    wanted = [file for _, file in llms.pages_of(llms.site_settings()["nav"])]
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .+$", (ROOT / "docs/llms.txt").read_text(), re.MULTILINE)
    assert listed == wanted
    assert all((ROOT / "docs" / file).is_file() for file in listed)
