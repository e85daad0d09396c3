"""What others build on does not change by accident: the public names with their signatures, the commands' options."""

from __future__ import annotations

import ast
import difflib
import re
import sys
from pathlib import Path

import pytest
from source_files import ROOT

sys.path.append(str(ROOT / "scripts"))

import public_api

HOW = (
    "\nWhat is public has changed (- frozen, + now). If that was not the aim, undo it. If it was, run"
    " `scripts/release freeze`, commit what it writes, and say in CHANGELOG.md what users have to change.\n"
)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PACKAGE = '''
from pydantic import BaseModel, Field
from mcprl.inner import Base, helper
__all__ = ["Kind", "Record", "build", "helper"]
Kind = str | int
class Record(Base):
    """A record."""
    size: int = Field(default=3, description="How large.")
    _hidden: int = 1
    async def read(self, path: str = "here") -> bytes: ...
    def _private(self) -> None: ...
def build(count: int, *, fast: bool = False) -> Record: ...
'''
INNER = """
class Base:
    def close(self) -> None: ...
def helper(text: str) -> str: ...
"""


@pytest.mark.parametrize("frozen", public_api.texts(), ids=lambda path: path.name)
def test_what_is_public_is_as_it_was_frozen(frozen):
    before, now = frozen.read_text().splitlines(), public_api.texts()[frozen]().splitlines()
    changes = list(difflib.unified_diff(before, now, "frozen", "now", lineterm="", n=0))
    assert changes == [], HOW + "\n".join(changes)


def test_the_documentation_imports_public_modules_only():
    found: dict[str, str] = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for code in BLOCK.findall(page.read_text()):
            for node in ast.walk(ast.parse(code)):
                names = [node.module] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                found |= {name: page.name for name in names if name and name.split(".")[0] == "mcprl"}
    assert found
    private = {name: page for name, page in found.items() if name not in public_api.PUBLIC_MODULES}
    assert private == {}, "add them to PUBLIC_MODULES in scripts/public_api.py, or show the public way"


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The frozen text of a package with these two modules."""

    def text(package: str, inner: str = INNER) -> str:
        folder = tmp_path / "mcprl"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text(package)
        (folder / "inner.py").write_text(inner)
        public_api.module_tree.cache_clear()
        return public_api.api_text()

    monkeypatch.setattr(public_api, "SOURCE", tmp_path)
    monkeypatch.setattr(public_api, "PUBLIC_MODULES", ("mcprl",))
    yield text
    public_api.module_tree.cache_clear()


def test_the_frozen_text_has_signatures_fields_and_what_is_inherited(described):
    assert described(PACKAGE).split("\n\n")[1].splitlines() == [
        "mcprl",
        "  Kind = str | int",
        "  class Record(Base)",
        "    def close(self) -> None",
        "    size: int = Field(default=3)",
        "    async def read(self, path: str='here') -> bytes",
        "  def build(count: int, *, fast: bool=False) -> Record",
        "  def helper(text: str) -> str",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fast: bool = False", "fast: bool = True"),
        ("count: int", "count: float"),
        ("default=3", "default=4"),
        ('path: str = "here"', "path: str"),
        ('"build", ', ""),
        ("async def read", "def read"),
        ("Kind = str | int", "Kind = str"),
    ],
)
def test_a_change_that_callers_feel_changes_the_frozen_text(described, old, new):
    assert old in PACKAGE
    assert described(PACKAGE.replace(old, new)) != described(PACKAGE)


def test_a_change_of_an_inherited_method_changes_the_frozen_text(described):
    assert described(PACKAGE, INNER.replace("close(self)", "close(self, hard: bool)")) != described(PACKAGE)


@pytest.mark.parametrize(("old", "new"), [("How large.", "Its size."), ("_private", "_other"), ("A record.", "One.")])
def test_better_words_and_private_parts_do_not(described, old, new):
    assert described(PACKAGE.replace(old, new)) == described(PACKAGE)


def test_a_public_module_without_a_list_of_names_is_refused(described):
    with pytest.raises(SystemExit, match="mcprl is public and has no __all__"):
        described(PACKAGE.replace("__all__", "names"))
