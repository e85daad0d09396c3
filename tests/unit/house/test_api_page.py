"""docs/api.md: every public name is there, with what its source says, and nothing is imported to find that out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from types import ModuleType

import pytest
from source_files import ROOT

IMPORTS_NOTHING = """
import sys
sys.path.insert(0, {scripts!r})
from docs_api import api_page
assert "# Python API" in api_page("")
print(sorted(name for name in sys.modules if name.split(".")[0] in ("mcprl", "torch", "transformers")))
"""
BASE_INSTALL = """
import sys
sys.path.insert(0, {scripts!r})
for name in ("torch", "transformers", "renderers", "safetensors", "peft", "accelerate", "xgrammar", "skyrl_gym", "ray",
             "tinker", "vllm", "duckdb", "mcprl_dashboard", "mcprl_market", "mcprl_skyrl_gym", "mcprl_suites",
             "mcprl_synthesis", "mcprl_agents"):
    sys.modules[name] = None
import mcprl
for name in mcprl.__all__:
    getattr(mcprl, name)
"""


@pytest.fixture(scope="module")
def api():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import docs_api

        yield docs_api
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs/api.md").read_text()


def printed(program: str) -> str:
    command = [sys.executable, "-c", program.format(scripts=str(ROOT / "scripts"))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.process
def test_the_page_is_made_without_importing_what_it_tells_of():
    assert printed(IMPORTS_NOTHING) == "[]\n"


@pytest.mark.process
def test_what_is_public_is_imported_with_the_base_install():
    assert printed(BASE_INSTALL) == ""


def test_every_public_name_has_one_section(api: ModuleType, page: str):
    anchors = re.findall(r"^### `.*` \{ #(\S+) \}$", page, re.MULTILINE)
    assert anchors == [api.anchor(api.MODULE, name) for name in api.exported(api.MODULE)]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (
            "def f(a: int, /, b: str = 'x', *c: int, **d: int) -> bool: ...",
            "f(a: int, /, b: str = 'x', *c: int, **d: int) -> bool",
        ),
        ("def f(*, c: float = _PRIVATE) -> None: ...", "f(*, c: float = …) -> None"),
        ("async def f() -> int: ...", "async f() -> int"),
        ("@asynccontextmanager\nasync def f() -> AsyncGenerator[int]: ...", "async with f() -> AsyncGenerator[int]"),
        ("class A(B):\n    x: int = 3\n    _y: int = 4", "class A(B)\n    x: int = 3"),
        ("class A:\n    x: int = Field(default=3, description='d')", "class A\n    x: int = 3"),
        ("class A:\n    x: int = Field(description='d')", "class A\n    x: int"),
        ("class A:\n    x: dict = field(default_factory=dict)", "class A\n    x: dict = …"),
        ("class A:\n    def __init__(self, n: int) -> None: ...", "class A\nA(n: int)"),
    ],
)
def test_a_signature_is_what_a_caller_must_know(api: ModuleType, source: str, shown: str):
    assert api.signature(ast.parse(source).body[0]) == shown


def test_a_long_signature_has_a_line_for_each_parameter(api: ModuleType):
    source = "def f(" + ", ".join(f"parameter_{i}: Mapping[str, int]" for i in range(5)) + ") -> None: ..."
    lines = api.signature(ast.parse(source).body[0]).splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("f(", "    parameter_0: Mapping[str, int],", ") -> None")
    assert len(lines) == 7


def test_text_of_a_docstring_is_no_markdown_or_html_by_accident(api: ModuleType):
    assert api.docstring("A * b, r_i and <s>, but `a_b <c>`.") == "A \\* b, r\\_i and &lt;s>, but `a_b <c>`."


def test_examples_and_formulas_of_a_docstring_keep_their_lines(api: ModuleType):
    text = 'Says it.\n\nTask(\n    id="a",\n)\n\nlinear    falls\ncosine    bends\n\nMore of\nthe same.'
    assert api.docstring(text) == (
        'Says it.\n\n    Task(\n        id="a",\n    )\n\n    linear    falls\n    cosine    bends\n\nMore of the same.'
    )
