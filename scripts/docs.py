"""Generates the pages of docs/ that come from the code, checks them, builds the site, and runs the snippets.

`check` also holds every figure that README.md, the other Markdown in the root, docs/ or bench/ quotes against the one
that was measured: the number before a mark such as `<!-- figure: tool-overhead -->` must be the one that
bench/figures.json has.

A fenced bash or python block is run where the line before it is the comment `<!-- run -->`, which neither GitHub nor
the site shows; `<!-- run timeout=300 -->` gives it more than the usual time. Blocks run in the repository's root, from
top to bottom, each in a process of its own. Where the next block is marked `<!-- output -->`, it must be what the block
before it prints; `snippets --write` puts that there.

`links` looks at every address that leads out of README.md, the other Markdown in the root, docs/ and the notebooks of
examples/: each must be https and well formed. With --online each is asked, and must answer; that needs a network, and
depends on others, so no gate does it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from docs_figures import figure_faults
from docs_links import check_links
from docs_pages import PAGES
from figures import read_figures

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DEFAULT_TIMEOUT_S = 120
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)")
MARK = re.compile(r"^ *<!-- run(?: timeout=(?P<timeout>\d+))? -->$")
OUTPUT_MARK = "<!-- output -->"
INTERPRETERS = {"bash": ["bash", "-euo", "pipefail"], "python": [sys.executable, "-"]}


@dataclass(frozen=True)
class Snippet:
    """One fenced block. `timeout_s` is None where nothing marks it to be run; `is_output` marks what another prints."""

    place: str
    language: str
    code: str
    timeout_s: int | None
    is_output: bool = False


def generate(names: list[str]) -> None:
    for name in names:
        (DOCS / name).write_text(PAGES[name]())
        print(f"docs/{name}")


def check(names: list[str]) -> None:
    """Fail where a generated page is not what the code says now."""
    stale = [name for name in names if not (DOCS / name).exists() or (DOCS / name).read_text() != PAGES[name]()]
    if stale:
        raise SystemExit(f"stale: {', '.join(stale)} in docs/. Fix: scripts/docs generate.")
    print(f"{len(names)} generated pages are up to date")


def check_figures(files: list[Path], root: Path = ROOT) -> None:
    """Fail if a page quotes a figure that is not the one that was measured."""
    named = {str(file.relative_to(root)): file for file in files}
    count, faults = figure_faults(named, read_figures(root))
    if faults:
        raise SystemExit("\n".join(faults))
    print(f"{count} quoted figures are those of bench/figures.json")


def build(folder: Path) -> None:
    """Build the site; a warning, such as a link to nowhere, is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    if result.returncode:
        raise SystemExit("the site does not build")
    for page in DOCS.rglob("*.md"):  # beside the pages, as docs/llms.txt names them
        copy = folder / page.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)
    print(f"site: {sum(1 for _ in folder.rglob('*.html'))} pages")


def find_snippets(path: Path) -> list[Snippet]:
    """All fenced blocks of a Markdown file."""
    found: list[Snippet] = []
    lines = path.read_text().splitlines()
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    number = 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if not fence:
            if MARK.match(lines[number]) and not (number + 1 < len(lines) and FENCE.match(lines[number + 1])):
                raise SystemExit(f"{name}:{number + 1}: `run` marks no block: the fence must be on the next line")
            number += 1
            continue
        mark = MARK.match(lines[number - 1]) if number else None
        close = f"{fence['indent']}```"
        end = next((i for i in range(number + 1, len(lines)) if lines[i].rstrip() == close), None)
        if end is None:
            raise SystemExit(f"{name}:{number + 1}: this block is never closed")
        code = "".join(line.removeprefix(fence["indent"]) + "\n" for line in lines[number + 1 : end])
        timeout_s = int(mark["timeout"] or DEFAULT_TIMEOUT_S) if mark else None
        is_output = number > 0 and lines[number - 1].strip() == OUTPUT_MARK
        found.append(Snippet(f"{name}:{number + 1}", fence["language"], code, timeout_s, is_output))
        number = end + 1
    return found


def run_snippet(snippet: Snippet, expected: str | None) -> str | None:
    """Run one block and return what it printed; None, and the reason on the screen, where it failed or differs."""
    if snippet.language not in INTERPRETERS:
        raise SystemExit(f"{snippet.place}: cannot run a block of {snippet.language or 'no language'}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = time.monotonic()
    process = subprocess.Popen(
        INTERPRETERS[snippet.language],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(snippet.code, timeout=snippet.timeout_s)
        problem = f"exit {process.returncode}" if process.returncode else None
        if problem is None and expected is not None and tidy(output) != tidy(expected):
            problem = "prints something else than the page says"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        problem = f"no end after {snippet.timeout_s} s"
    print(f"{snippet.place}: {problem or 'ok'} ({time.monotonic() - started:.1f} s)", flush=True)
    if problem:
        print(f"{snippet.code}--- output\n{output}")
    return output if problem is None else None


def tidy(text: str) -> str:
    """Without the spaces at the ends of lines, and without empty lines at the end, that no reader sees."""
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def expected_outputs(snippets: list[Snippet]) -> dict[str, Snippet]:
    """The output blocks, by the place of the block that prints them."""
    found: dict[str, Snippet] = {}
    for before, block in zip([None, *snippets], snippets, strict=False):
        if block.is_output:
            if before is None or before.timeout_s is None:
                raise SystemExit(f"{block.place}: `output` stands behind no block that is run")
            found[before.place] = block
    return found


def write_outputs(file: Path) -> None:
    """Put what the blocks of a file print into their output blocks."""
    snippets = find_snippets(file)
    text = file.read_text()
    for place, block in expected_outputs(snippets).items():
        printed = run_snippet(next(s for s in snippets if s.place == place), None)
        if printed is None:
            raise SystemExit(1)
        opening = f"{OUTPUT_MARK}\n```{block.language}\n"
        text = text.replace(opening + block.code, opening + tidy(printed))
    file.write_text(text)


def run_snippets(files: list[Path]) -> None:
    """Run the marked blocks of these files; fail where one fails."""
    snippets = [snippet for file in files for snippet in find_snippets(file)]
    outputs = expected_outputs(snippets)
    marked = [snippet for snippet in snippets if snippet.timeout_s is not None]
    failed: list[str] = []
    for snippet in marked:
        expected = outputs[snippet.place].code if snippet.place in outputs else None
        if run_snippet(snippet, expected) is None:
            failed.append(snippet.place)
    print(f"{len(marked)} snippets executed, {len(snippets) - len(marked)} not executed, {len(failed)} failed")
    if failed:
        raise SystemExit(1)


def linking_files() -> list[Path]:
    """Where people follow links from."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").glob("*.ipynb"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("generate", "write the generated pages"), ("check", "fail where a generated page is stale")):
        command = commands.add_parser(name, help=what)
        command.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)}")
    command = commands.add_parser("build", help="build the site")
    command.add_argument("--site-dir", type=Path, help="default: a folder that is thrown away")
    command = commands.add_parser("snippets", help="run the marked code blocks")
    command.add_argument("files", nargs="*", type=Path, help="default: README.md and docs/")
    command.add_argument("--write", action="store_true", help="write what they print into the output blocks instead")
    command = commands.add_parser("links", help="check the links that lead out of the documentation")
    command.add_argument("files", nargs="*", type=Path, help="default: all Markdown, and examples/*.ipynb")
    command.add_argument("--online", action="store_true", help="also ask each address whether it answers")
    options = parser.parse_args()
    unknown = set(getattr(options, "pages", [])) - set(PAGES)
    if unknown:
        parser.error(f"no generated page {', '.join(sorted(unknown))}; there are: {', '.join(PAGES)}")
    if options.command == "generate":
        generate(options.pages or list(PAGES))
    elif options.command == "check":
        check(options.pages or list(PAGES))
        if not options.pages:
            check_figures([*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), ROOT / "bench" / "README.md"])
    elif options.command == "build":
        with tempfile.TemporaryDirectory() as folder:
            build(options.site_dir.resolve() if options.site_dir else Path(folder))
    elif options.command == "links":
        check_links([f.resolve() for f in options.files] or linking_files(), ROOT, online=options.online)
    else:
        files = [f.resolve() for f in options.files] or [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
        if options.write:
            for file in files:
                write_outputs(file)
        else:
            run_snippets(files)


if __name__ == "__main__":
    main()
