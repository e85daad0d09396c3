"""scripts/docs links: which addresses it finds, and when it says no."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from source_files import ROOT

PAGE = """See [one](https://one.org/a_(b)), <https://two.org>, and https://three.org/x. Not `https://code.org`.

[![badge](https://four.org/b.svg)](https://five.org/)

```bash
curl https://fenced.org
```

    curl https://indented.org

- a list

    with https://six.org in it
"""


@pytest.fixture(scope="module")
def links():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import docs_links

        yield docs_links
    finally:
        sys.path.remove(str(ROOT / "scripts"))


class Answers(BaseHTTPRequestHandler):
    """Answers with the number that is its path."""

    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_addresses_in_prose_are_found_and_those_in_code_are_not(links: ModuleType):
    found = [(link.place, link.url) for link in links.links_in("page.md", PAGE)]
    assert found == [
        ("page.md:1", "https://one.org/a_(b)"),
        ("page.md:1", "https://two.org"),
        ("page.md:1", "https://three.org/x"),
        ("page.md:3", "https://four.org/b.svg"),
        ("page.md:3", "https://five.org/"),
        ("page.md:13", "https://six.org"),
    ]


@pytest.mark.parametrize("url", ["https://a.org", "https://a-b.co.uk:8443/x?y=1#z", "http://127.0.0.1:8000/mcp"])
def test_an_address_that_is_well_written_has_no_fault(links: ModuleType, url: str):
    assert links.fault_of(url) is None


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://a.org", "is http, not https"),
        ("ftp://a.org", "is ftp, not https"),
        ("https://", "has no host"),
        ("https://a", "has a host that is none"),
        ("https://a..org", "has a host that is none"),
        ("https://-a.org", "has a host that is none"),
        ("https://me:secret@a.org", "a name or a password"),
        ("https://a.org:port", "cannot be read"),
    ],
)
def test_an_address_that_cannot_be_right_is_named_with_its_fault(links: ModuleType, url: str, fault: str):
    assert fault in links.fault_of(url)


def test_a_page_with_a_bad_address_fails_and_says_where(links: ModuleType, tmp_path: Path, capsys):
    page = tmp_path / "page.md"
    page.write_text("fine: https://a.org\n\nbad: http://b.org\n")
    with pytest.raises(SystemExit):
        links.check_links([page], tmp_path, online=False)
    assert "page.md:3: http://b.org is http, not https" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "fault"), [(200, None), (403, None), (429, None), (404, "answers 404")])
def test_an_address_is_there_unless_its_host_says_that_it_is_not(links: ModuleType, address: str, status, fault):
    assert links.answer_of(f"{address}/{status}") == fault


def test_an_address_whose_host_is_not_there_does_not_answer(links: ModuleType):
    assert "does not answer" in links.answer_of("http://127.0.0.1:1/")


def test_online_each_address_is_asked_once_and_told_at_every_place(
    links: ModuleType, tmp_path: Path, monkeypatch, capsys
):
    asked: list[str] = []
    monkeypatch.setattr(links, "answer_of", lambda url: asked.append(url) or "answers 404")
    page = tmp_path / "page.md"
    page.write_text("https://a.org\n\nhttps://a.org and http://127.0.0.1:9/\n")
    with pytest.raises(SystemExit):
        links.check_links([page], tmp_path, online=True)
    assert asked == ["https://a.org"]
    assert capsys.readouterr().out.count("https://a.org answers 404") == 2


def test_the_prose_of_a_notebook_is_looked_at_and_its_code_is_not(links: ModuleType, tmp_path: Path):
    notebook = tmp_path / "a.ipynb"
    cells = (
        '[{"cell_type": "markdown", "source": ["see https://a.org"]}, {"cell_type": "code", "source": ["https://b"]}]'
    )
    notebook.write_text(f'{{"cells": {cells}}}')
    assert [link.url for link in links.links_in("a", links.read_text(notebook))] == ["https://a.org"]
