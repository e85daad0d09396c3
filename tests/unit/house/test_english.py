"""Phrases that a native engineer stumbles over stay out of what people read: code, messages, docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from source_files import PACKAGE, PACKAGES, ROOT

# Each pattern, what to write instead, and a text in which it is found.
STUMBLES = {
    r"\bmend(?:s|ed|ing)?\b": ("fix", "how to mend it"),
    r"(?<![Tt]here )\bis no (?!longer|more|way|need|room|other|such|one\b)": ("is not a", "'x' is no section"),
    r"\bstands? (?:in|on|at|there|before|behind|under)\b": ("is in, is on", "the key stands in the file"),
    r"\b(?:goes|go|went) on (?:with|where|from|after|until|without|as)\b": ("continues", "the run goes on from there"),
    r"\bas ever\b": ("as usual", "called as ever"),
    r"\bspoilt\b": ("non-finite, failed", "a spoilt update"),
    r"\bis told (?:of|that|its|how)\b": ("gets, receives", "the tracker is told of it"),
    r"\bto know of\b": ("warnings", "12 well, 2 to know of"),
    r"\bof no use\b": ("useless", "of no use without a GPU"),
    r"\banew\b": ("again, new", "the server is started anew"),
    r"\blikel(?:ier|iest)\b": ("more likely, most likely", "the likeliest token"),
    r"\blives? on\b": ("survives, continues", "no process lives on"),
    r"\b(?:told|tells?) of\b": ("receives, reports", "trackers are told of it"),
    r"\bgo(?:es)? on\b": ("continues", "the run goes on"),
    r"\bprograms of others\b": ("third-party programs", "the filter for programs of others"),
    r"\bfor lack of\b": ("because … ran out", "killed for lack of memory"),
    r"\bis to be\b": ("must be, will be", "the first call is to be repeated"),
    r"\bturned away\b": ("rejected", "the call was turned away"),
    r"\bspeaks? of\b": ("mentions, describes", "the page speaks of parity"),
    r"\bmeets (?:a|with)\b": ("hits, encounters", "an update that meets a NaN"),
    r"\bmore than \S+ deep\b": ("more than N levels deep", "nested more than 100 deep"),
    r"\bequally much\b": ("the same, as much", "several have seen equally much"),
    r"(?m)^says = \"(?:There,|So do|So does|And at)": ("name the subject", 'says = "There, no episode is lost."'),
    r"\bprocessor second\b": ("per CPU second", "tokens a processor second"),
    r"\b(?:nats|ms|seconds|tokens|calls|updates) an? (?:token|call|second|minute|hour|step|turn)\b": (
        "per",
        "3 ms a call",
    ),
}


def read_by_people() -> list[Path]:
    # The wordings of generated tasks vary on purpose, and published results depend on them.
    code = [p for folder in (PACKAGE, *PACKAGES) for p in folder.rglob("*.py") if p.parent.name != "families"]
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/guides/*.md"),
        *ROOT.glob("recipes/**/*.yaml"),
        *PACKAGE.glob("scaffold/template/*.*"),
        ROOT / "promises.toml",
        ROOT / "bench" / "README.md",
    ]
    return [*code, *(page for page in pages if page.name != "CHANGELOG.md")]


@pytest.mark.parametrize("pattern", STUMBLES)
def test_a_phrase_that_people_stumble_over_is_not_used(pattern):
    instead, example = STUMBLES[pattern]
    assert re.search(pattern, example)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in read_by_people()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == [], f"write {instead!r} instead"
