"""The links that lead out of the documentation: whether each is one, and, where asked, whether somebody answers.

Links inside of the site, anchors included, are the affair of `scripts/docs build`. Blocks of code are left out: what
stands there is typed, not followed.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_S = 20
AT_ONCE = 8
# The host is there and knows the address, but talks to browsers only, or not so often.
ANSWERS_ALL_THE_SAME = {401, 403, 405, 429}
FENCE = re.compile(r"^ *(```+|~~~+)")
LIST = re.compile(r" *([-*+]|\d+[.)]) ")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s<>\"'`\[\]]*", re.IGNORECASE)
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.IGNORECASE)
PUNCTUATION = ".,;:!?*_|"
LOCAL = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True)
class Link:
    """An address and where it stands: Link("docs/tools.md:12", "https://modelcontextprotocol.io")."""

    place: str
    url: str


def links_in(name: str, text: str) -> Iterator[Link]:
    """Every address outside of code."""
    for number, line in prose_lines(text):
        for match in URL.finditer(CODE.sub("", line)):
            yield Link(f"{name}:{number}", trimmed(match[0]))


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbers and lines outside of blocks of code, fenced or indented. What is indented under a list is no code."""
    fence, is_block, in_list, before = "", False, False, ""
    for number, line in enumerate(text.splitlines(), start=1):
        mark = FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            continue
        indented = line.startswith("    ")
        is_block = indented and not in_list and (is_block or not before)
        if line.strip() and not indented:
            in_list = LIST.match(line) is not None or (in_list and line.startswith(" "))
        before = line.strip() or ("" if not is_block else before)
        if not fence and not is_block:
            yield number, line


def trimmed(url: str) -> str:
    """Without what belongs to the sentence around it: `(https://a.org/b_(c)).` is https://a.org/b_(c)."""
    url = url.rstrip(PUNCTUATION)
    while url.count(")") > url.count("("):
        url = url[: url.rindex(")")].rstrip(PUNCTUATION)
    return url


def fault_of(url: str) -> str | None:
    """What is wrong with an address as it is written; None where nothing is."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"cannot be read: {error}"
    if not host:
        return "has no host"
    if parts.username is not None or parts.password is not None:
        return "has a name or a password in it"
    if parts.scheme == "http" and host in LOCAL:
        return None
    if parts.scheme != "https":
        return f"is {parts.scheme}, not https"
    labels = host.split(".")
    if len(labels) < 2 or not all(LABEL.fullmatch(label) for label in labels):
        return f"has a host that is none: {host}"
    return None


def answer_of(url: str) -> str | None:
    """What is wrong with the answer of an address; None where it is there."""
    request = urllib.request.Request(url, headers={"User-Agent": "mcprl-docs-links", "Accept": "*/*"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        return None if error.code in ANSWERS_ALL_THE_SAME else f"answers {error.code}"
    except OSError as error:  # URLError, time-outs, broken connections
        return f"does not answer: {getattr(error, 'reason', error)}"


def read_text(path: Path) -> str:
    """The text that people read: a file's own, or the prose of a notebook."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def check_links(files: Sequence[Path], root: Path, *, online: bool) -> None:
    """Fail, with every fault by its place, where an address is malformed or, online, does not answer."""
    named = [(str(f.relative_to(root)) if f.is_relative_to(root) else str(f), f) for f in files]
    links = [link for name, file in named for link in links_in(name, read_text(file))]
    faults = {link: fault for link in links if (fault := fault_of(link.url)) is not None}
    if online:
        well_formed = dict.fromkeys(link.url for link in links if link not in faults)
        urls = [url for url in well_formed if urlsplit(url).hostname not in LOCAL]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            answers = dict(zip(urls, threads.map(answer_of, urls), strict=True))
        faults |= {link: fault for link in links if (fault := answers.get(link.url)) is not None}
    for link, fault in faults.items():
        print(f"{link.place}: {link.url} {fault}")
    asked = "asked" if online else "not asked: that is --online"
    print(f"{len({link.url for link in links})} external links, {len(faults)} at fault ({asked})")
    if faults:
        raise SystemExit(1)
