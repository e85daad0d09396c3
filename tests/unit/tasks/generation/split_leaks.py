"""Whether validation asks for what training asked for. It reads the finished prompts, not how they were made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mcprl.records import Task
from mcprl_market.world import open_market, open_workspace

WORLD = 7

_PLACES = re.compile(r"\b(newest|latest|biggest|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth)\b")


def family_of(task: Task) -> str:
    """From an id such as train-price-gap-003."""
    return task.id.split("-", 1)[1].rsplit("-", 1)[0]


def words_of(task: Task) -> str:
    return str(task.prompt[0]["content"])


def symbols_in(text: str) -> set[str]:
    """The companies that a text names, by name or by symbol."""
    words = set(re.findall(r"\b[A-Z]{3,4}\b", text))
    return {
        company.symbol for company in open_market(WORLD).companies if company.symbol in words or company.name in text
    }


def channels_in(text: str) -> set[str]:
    """The channels that a text names, by name or by purpose."""
    names = set(re.findall(r"#([a-z-]+)", text))
    return {c.name for c in open_workspace(WORLD).channels() if c.name in names or (c.purpose and c.purpose in text)}


def subject_of(task: Task) -> tuple[str, ...]:
    """What a prompt is about: its family, companies, channels, days, places in a list, and numbers."""
    text = words_of(task)
    symbols = symbols_in(text)
    if symbols:
        # A task about a company is the same task in another channel.
        return (family_of(task), *sorted(symbols), *_days(text))
    places = _PLACES.findall(text)
    sides = sorted(set(re.findall(r"gainer|loser", text)))
    numbers = re.findall(r"\d+(?:\.\d+)?", text)
    return (family_of(task), *sorted(channels_in(text)), *_days(text), *places, *sides, *numbers)


def normalised(task: Task) -> str:
    return " ".join(re.findall(r"\w+", words_of(task).lower()))


def wording_of(task: Task) -> str:
    """The prompt without what it is about."""
    text = words_of(task)
    for company in open_market(WORLD).companies:
        text = text.replace(company.name, "NAME")
        text = re.sub(rf"\b{company.symbol}(?=\b|_)", "SYMBOL", text)
        text = text.replace(f"{company.symbol.lower()}_", "KEY_")
    for channel in open_workspace(WORLD).channels():
        text = text.replace(f"#{channel.name}", "#ROOM").replace(channel.purpose, "PURPOSE")
    return re.sub(r"\d+(?:\.\d+)?", "N", text)


def leaks(train: Sequence[Task], validation: Sequence[Task]) -> list[str]:
    """A sentence for each task of validation that training gives away."""
    prompts = {normalised(task): task.id for task in train}
    subjects = {subject_of(task): task.id for task in train}
    companies = set[str]().union(*(symbols_in(words_of(task)) for task in train))
    found: list[str] = []
    for task in validation:
        if normalised(task) in prompts:
            found.append(f"{task.id} is worded like {prompts[normalised(task)]}")
        if subject_of(task) in subjects:
            found.append(f"{task.id} asks for what {subjects[subject_of(task)]} asks for")
        if shared := symbols_in(words_of(task)) & companies:
            found.append(f"{task.id} is about {', '.join(sorted(shared))}, which training is about")
    return found


def _days(text: str) -> Iterable[str]:
    return sorted(re.findall(r"\d{4}-\d{2}-\d{2}", text))
