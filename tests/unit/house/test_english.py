"""Phrases that a native engineer stumbles over stay out of what people read: code, messages, docs."""

from __future__ import annotations

import re
import subprocess

import pytest
from source_files import ROOT

# Each pattern, and what to write instead.
STUMBLES = {
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"(?<![Tt]here )\bis no (?!longer|more|way|need|room|other|such|one\b)": "is not a",
    r"\bstands? (?:in|on|at|there|before|behind|under)\b": "is in, is on",
    r"\b(?:goes|go|went) on (?:with|where|from|after|until|without|as)\b": "continues, resumes",
    r"\bas ever\b": "as usual",
    r"\bspoilt\b": "non-finite, failed",
    r"\bis told (?:of|that|its|how)\b": "gets, receives",
    r"\bto know of\b": "warnings",
    r"\bof no use\b": "useless",
    r"\b(?:nats|ms|seconds|tokens|calls|updates) an? (?:token|call|second|minute|hour|step|turn)\b": "per",
}
PLACES = ("src", "packages/*/src", "docs/*.md", "docs/guides", "recipes", "README.md", "CONTRIBUTING.md")


def read_by_people() -> list[str]:
    files = subprocess.run(["git", "ls-files", *PLACES], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in files.stdout.splitlines() if name.endswith((".py", ".md", ".yaml"))]


@pytest.mark.process  # git
@pytest.mark.parametrize("pattern", STUMBLES)
def test_a_phrase_that_people_stumble_over_is_not_used(pattern):
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in read_by_people()
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == [], f"write {STUMBLES[pattern]!r} instead"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\bmend(?:s|ed|ing)?\b", "how to mend it"),
        (r"(?<![Tt]here )\bis no (?!longer|more|way|need|room|other|such|one\b)", "'x' is no section"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern, text):
    assert pattern in STUMBLES
    assert re.search(pattern, text)
