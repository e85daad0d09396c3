"""Which licences come with mcprl: read from the metadata of what is installed, held against scripts/licences.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dependency_closure import closure, requirements, user_extras

RULES = Path(__file__).with_name("licences.toml")
# A licence's name is short; longer is its whole text, for which the classifiers have the name.
MAX_NAME = 80
UNSAID = {"", "unknown"}
TOKEN = re.compile(r"\(|\)|\bAND\b|\bOR\b|[^\s()]+(?:\s+WITH\s+[^\s()]+)?")


@dataclass(frozen=True)
class Verdict:
    """On one package. `problem` is empty where its licence is allowed."""

    package: str
    licence: str
    problem: str = ""
    reason: str = ""


def said(package: metadata.Distribution) -> str:
    """What a package says its licence is: the SPDX expression, else the classifiers, else the free text."""
    fields = package.metadata
    if expression := fields.get("License-Expression"):
        return expression
    text = (fields.get("License") or "").strip()
    if re.search(r" (AND|OR) ", text) and len(text) <= MAX_NAME:
        return text  # says more than classifiers can: whether one may choose
    classifiers = [
        each.split(" :: ")[-1] for each in fields.get_all("Classifier") or [] if each.startswith("License ::")
    ]
    names = [name for name in classifiers if name != "OSI Approved"]
    if names:
        return " AND ".join(names)
    return "" if text.lower() in UNSAID else text.splitlines()[0].strip()[:MAX_NAME]


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Whether an SPDX expression can be met by allowed licences alone. AND binds closer than OR."""
    tokens = TOKEN.findall(expression)

    def either() -> bool:
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() or value
        return value

    def both() -> bool:
        value = single()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = single() and value
        return value

    def single() -> bool:
        if not tokens:
            return False
        token = tokens.pop(0)
        if token != "(":
            return re.sub(r"\s+", " ", token) in allowed
        value = either()
        return bool(tokens) and tokens.pop(0) == ")" and value

    value = either()
    return value and not tokens


def spdx(text: str, spellings: dict[str, str]) -> str:
    """The expression that is meant, each of its names in the spelling of SPDX."""
    if text.lower() in spellings:
        return spellings[text.lower()]
    names = text.split(" AND ")
    return " AND ".join(spellings.get(name.lower(), name) for name in names)


def judge(package: str, says: str, rules: dict) -> Verdict:
    exception = rules["exceptions"].get(package)
    if exception:
        if exception["says"] != says:
            problem = f"says {says or 'nothing'!r}, its exception is for {exception['says'] or 'nothing'!r}"
            return Verdict(package, says, problem)
        return Verdict(package, exception["licence"], reason=exception["reason"])
    if not says:
        return Verdict(package, "", "says nothing of its licence")
    expression = spdx(says, rules["spellings"])
    good = is_allowed(expression, rules["allowed"])
    return Verdict(package, expression, "" if good else "is not among the allowed licences")


def check_licences() -> tuple[list[Verdict], frozenset[str]]:
    """A verdict on every package of the base install and the extras for users; and what is not installed here."""
    rules = tomllib.loads(RULES.read_text())
    everything = closure([*requirements(), *(f"mcprl[{extra}]" for extra in user_extras())])
    verdicts = [judge(name, said(found), rules) for name, found in sorted(everything.found.items())]
    unused = set(rules["exceptions"]) - set(everything.found)
    verdicts += [Verdict(name, "", "has an exception and is not installed") for name in sorted(unused)]
    return verdicts, everything.missing
