"""Finds argument values that tools accept, and proves links between tools.

A value is proven for an argument if the tool accepts it, junk values of the same shape get an error or a "not found"
result, and a repeated call returns the same fields. A source of values (a kind of field in the results of a tool) is
linked to an argument if some of its values are proven.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any, Final, TypeVar

from mcprl.seeds import derive_seed
from mcprl.tools import Tool
from mcprl_synthesis.arguments import leaves, of_schema, required, type_of, typed
from mcprl_synthesis.reading import Ref, fields_of, junk, kind_of, odd_words, safe
from mcprl_synthesis.world import Seen, World

__all__ = [
    "HINTS",
    "SCHEMA",
    "Exploration",
    "Slot",
    "Source",
    "explore",
    "most_common_share",
    "unreached",
]

Source = tuple[str, Ref]
"""A source of values: a tool and the kind of a field in its results. Hints and schemas are sources without a tool."""
Slot = tuple[str, str]
"""A tool and one of its arguments."""

Propose = Callable[[Tool, str, Any], Awaitable[list[str]]]

HINTS: Final[Source] = ("", ("hint", "*"))
SCHEMA: Final[Source] = ("", ("schema", "*"))

_ROUNDS = 8
_SOURCES_PER_SLOT = 20
_TRIED = 2
_FIRST_TRIES = 30
_ENOUGH_SOURCES = 8
_PARALLEL = 8
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


@dataclass(frozen=True, slots=True)
class Known:
    """A call that worked, with the values of its result keyed by ref."""

    tool: str
    arguments: Mapping[str, Any]
    fields: Mapping[Ref, str]


@dataclass(slots=True)
class Exploration:
    """The result of exploring. `proven` has the values of each argument, `links` the sources of each argument."""

    pool: dict[Source, dict[Any, None]] = field(default_factory=dict[Source, dict[Any, None]])
    known: dict[str, list[Known]] = field(default_factory=dict[str, list[Known]])
    proven: dict[Slot, dict[Any, None]] = field(default_factory=dict[Slot, dict[Any, None]])
    links: dict[Slot, dict[Source, None]] = field(default_factory=dict[Slot, dict[Source, None]])
    options: dict[Slot, list[Any]] = field(default_factory=dict[Slot, list[Any]])

    def labels(self, tool: str) -> dict[Ref, list[str]]:
        """Return the values of a tool's results by ref. Refs that do not reliably name a value are left out."""
        found: dict[Ref, list[str]] = {}
        for known in self.known.get(tool, ()):
            for ref, value in known.fields.items():
                found.setdefault(ref, []).append(value)
        heads = {str(value).casefold() for values in self.proven.values() for value in values}
        calls = len(self.known.get(tool, ()))
        return {ref: values for ref, values in found.items() if self._names(ref, values, calls, heads)}

    def ordered(self, tools: Sequence[Tool]) -> Exploration:
        """Return a copy in the order of the catalog, so that it does not matter which server responded first."""
        place = {"": -1} | {tool.name: number for number, tool in enumerate(tools)}
        return Exploration(
            pool=_sorted(self.pool, place),
            known={tool.name: self.known[tool.name] for tool in tools if tool.name in self.known},
            proven=_sorted(self.proven, place),
            links=_sorted(self.links, place),
            options=_sorted(self.options, place),
        )

    def _names(self, ref: Ref, values: Sequence[str], calls: int, heads: Collection[str]) -> bool:
        """Return True if a ref reliably names a value: a label recurs and is not a proven value; list entries vary."""
        if ref[1].isdigit():
            return ref[0] == "part" or calls == 1 or len(set(values)) > 1
        return (len(values) > 1 or ref[0][-1:].isdigit()) and ref[1].casefold() not in heads


def affinity(slot: str, source: Source) -> float:
    """Return how similar the names of an argument and of a source are: the share of common words."""
    tool, (place, name) = source
    mine = _stems(slot)
    label = 0.0 if name == "*" or place == "word" else len(mine & _stems(name)) / len(mine | _stems(name))
    # The words of the tool count less, and words found in running text least.
    return label + 0.4 * len(mine & _stems(tool)) / len(mine) - (0.5 if place == "word" else 0.0)


def _stems(name: str) -> set[str]:
    return {word.casefold().rstrip("s") for word in _WORD.findall(name)}


def plain(text: str, value: Any) -> str:
    """Return a result without the requested value, so that the results for two values can be compared."""
    return re.sub(re.escape(str(value)), "¤", text, flags=re.IGNORECASE)


_Key = TypeVar("_Key", bound=tuple[str, Any])
_Value = TypeVar("_Value")


def _sorted(values: Mapping[_Key, _Value], place: Mapping[str, int]) -> dict[_Key, _Value]:
    return dict(sorted(values.items(), key=lambda item: place[item[0][0]]))


def _copied(values: Mapping[_Key, Mapping[Any, None]]) -> dict[_Key, dict[Any, None]]:
    return {key: dict(each) for key, each in values.items()}


class _Explorer:
    def __init__(self, world: World, hints: Mapping[str, Sequence[Any]], seed: int, entities: int) -> None:
        self.world = world
        self.look = world.look(0)
        self.hints = hints
        self.seed = seed
        self.entities = entities
        self.found = Exploration()
        self.tested: set[tuple[Slot, Source]] = set()
        self.before = Exploration()
        self.bases: dict[str, dict[str, Any]] = {}

    async def run(self, propose: Propose | None) -> Exploration:
        self.offer(self.world.offered)
        await self.rounds()
        missing = [self.world.catalog[tool] for tool in unreached(self.world, self.found)] if propose else []
        for tool in missing:
            for name in required(tool):
                assert propose is not None
                self.offer({name: await propose(tool, name, leaves(tool)[name].schema)})
        if missing:
            await self.rounds()
        return self.found

    def offer(self, offered: Mapping[str, Sequence[str]]) -> None:
        """Add, for each argument, candidate values that no call returned."""
        for name, values in offered.items():
            self.found.pool.setdefault(("", ("offered", name)), {}).update(dict.fromkeys(filter(safe, values)))

    async def rounds(self) -> None:
        """Explore in rounds, each with the values that were known before it, until a round finds nothing new.

        All servers are called at the same time. What a round finds does not depend on which one responds first.
        """
        tools: dict[str, list[Tool]] = {}
        for tool in self.world.catalog:
            if tool.read_only:
                tools.setdefault(tool.server, []).append(tool)
        for _ in range(_ROUNDS):
            self.before = replace(self.found, pool=_copied(self.found.pool), links=_copied(self.found.links))
            known = (len(self.tested), sum(map(len, self.found.pool.values())))
            await asyncio.gather(*map(self.reach_all, tools.values()))
            self.found = self.found.ordered(list(self.world.catalog))
            if known == (len(self.tested), sum(map(len, self.found.pool.values()))):
                break

    async def reach_all(self, tools: Sequence[Tool]) -> None:
        for tool in tools:
            await self.reach(tool)

    async def reach(self, tool: Tool) -> None:
        base = self.bases.get(tool.name) or await self.first(tool)
        if base is None:
            return
        self.bases[tool.name] = base
        for name, leaf in leaves(tool).items():
            slot, schema = (tool.name, name), leaf.schema
            if "enum" in schema or type_of(schema) == "boolean":
                if slot not in self.found.options:
                    self.found.options[slot] = list(filter(safe, dict.fromkeys(of_schema(schema))))
                    for value in self.found.options[slot]:
                        await self.call(tool.name, {**base, name: value})
                continue
            if not leaf.required and not (type_of(schema) == "string" or self.hinted(tool.name, name)):
                continue
            for source, values in self.sources(tool, name, schema):
                enough = len(self.found.links.get(slot, ())) >= _ENOUGH_SOURCES
                if not enough or source in (HINTS, SCHEMA) or affinity(name, source) >= 0.5:
                    await self.test(tool.name, name, base, source, values)

    async def first(self, tool: Tool) -> dict[str, Any] | None:
        """Return arguments that a tool accepts, or None."""
        names = required(tool)
        listed = [self.sources(tool, name, leaves(tool)[name].schema) for name in names]
        choices = [[value for _, values in sources for value in values[:_TRIED]] for sources in listed]
        for values in islice(_near_first(choices), _FIRST_TRIES):
            arguments = dict(zip(names, values, strict=True))
            if (await self.call(tool.name, arguments)).worked:
                return arguments
        return None

    def hinted(self, tool: str, name: str) -> list[Any]:
        return [*self.hints.get(f"{tool}.{name}", ()), *self.hints.get(name, ())]

    def sources(self, tool: Tool, name: str, schema: Mapping[str, Any]) -> list[tuple[Source, list[Any]]]:
        """Return sources of values for an argument, the most likely first."""
        listed: list[tuple[Source, list[Any]]] = [(HINTS, self.hinted(tool.name, name)), (SCHEMA, of_schema(schema))]
        if type_of(schema) == "integer" and "minimum" in schema:
            listed[1][1].append(schema["minimum"])
        elsewhere = {source for slot, sources in self.before.links.items() if slot[1] == name for source in sources}
        # Of equally likely sources, take the first of each tool, then the second.
        nth: Counter[str] = Counter()
        order: dict[Source, int] = {}
        for source in self.before.pool:
            order[source] = nth[source[0]]
            nth[source[0]] += 1
        likely = {source: affinity(name, source) + (source in elsewhere) for source in self.before.pool}
        ranked = sorted(self.before.pool, key=lambda source: (-likely[source], order[source]))
        for source in ranked:
            values = [value for each in self.before.pool[source] if (value := typed(each, schema)) is not None]
            listed.append((source, values))
        return [(source, values) for source, values in listed if values][: _SOURCES_PER_SLOT + 2]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Seen:
        """Call a tool, and store the values of its result."""
        seen = await self.look.read(tool, arguments)
        known = self.found.known.setdefault(tool, [])
        if seen.worked and all(each.arguments != arguments for each in known):
            self.learn(known, tool, arguments, seen.text)
        return seen

    def learn(self, known: list[Known], tool: str, arguments: Mapping[str, Any], text: str) -> None:
        fields = fields_of(text)
        known.append(Known(tool, dict(arguments), fields))
        given = {str(value).casefold() for value in arguments.values()}
        named = [((tool, kind_of(ref)), value.lstrip("#@")) for ref, value in fields.items()]
        loose = [
            ((tool, ("word", re.sub(r"\w", "", word) or ("A" if word.isupper() else "a"))), word)
            for word in odd_words(text)
        ]
        # Without arguments there is one result, so its labels cannot be told from its values.
        unsure = {"the", "first"} if not arguments and not text.lstrip().startswith(("{", "[")) else set[str]()
        for source, value in (*named, *loose):
            if source[1][0] not in unsure and safe(value) and value.casefold() not in given:
                self.found.pool.setdefault(source, {}).setdefault(value)

    async def test(self, tool: str, name: str, base: Mapping[str, Any], source: Source, values: Sequence[Any]) -> None:
        """Try values of a source for an argument. If some are proven, try more."""
        slot = (tool, name)
        links = self.found.links.setdefault(slot, {})
        if (slot, source) in self.tested and source not in links:
            return
        self.tested.add((slot, source))
        held = self.found.proven.setdefault(slot, {})
        if any(value in held for value in values[:_TRIED]):
            links.setdefault(source)
        new = [value for value in values if value not in held]
        start, size = 0, len(new) if source in (HINTS, SCHEMA) else _TRIED
        while start < len(new) and (start == 0 or len(held) < self.entities):
            few = new[start : start + size]
            works = await asyncio.gather(*(self.is_proven(slot, base, value) for value in few))
            for value, worked in zip(few, works, strict=True):
                await self.call(tool, {**base, name: value})  # in order, whichever answered first
                held |= {value: None} if worked else {}
                if source == HINTS and not worked and safe(value):
                    # The user vouches for a value that junk cannot be told from, such as a path.
                    self.found.options.setdefault(slot, []).append(value)
            if source not in links and not any(works):
                return
            links.setdefault(source)
            start, size = start + size, _PARALLEL

    async def is_proven(self, slot: Slot, base: Mapping[str, Any], value: Any) -> bool:
        (tool, name), read = slot, self.look.read
        stream = random.Random(derive_seed(self.seed, "junk", *slot, str(value)))
        seen = await read(tool, {**base, name: value})
        if not (seen.worked and safe(value)):
            return False
        others = [junk(value, stream) for _ in range(2)]
        *wrong, again = await asyncio.gather(
            *(read(tool, {**base, name: other}) for other in others), read(tool, {**base, name: value}, again=1)
        )
        told = {plain(each.text, other) for each, other in zip(wrong, others, strict=True) if each.worked}
        if len(told) > 1 or plain(seen.text, value) in told or seen.text in {each.text for each in wrong}:
            return False
        return again.worked and fields_of(again.text).keys() == fields_of(seen.text).keys()


def _near_first(choices: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield combinations of values, the most likely first."""
    indices = product(*(range(len(each)) for each in choices))
    for places in sorted(islice(indices, 5000), key=lambda places: (sum(places), places)):
        yield tuple(each[place] for each, place in zip(choices, places, strict=True))


async def explore(
    world: World, hints: Mapping[str, Sequence[Any]], *, seed: int, entities: int, propose: Propose | None = None
) -> Exploration:
    """Call read-only tools with values that become known on the way, and prove links.

    `propose` is asked for argument values of tools for which no call worked.
    """
    return await _Explorer(world, hints, seed, entities).run(propose)


def unreached(world: World, found: Exploration) -> dict[str, list[str]]:
    """Return the read-only tools for which no call worked, each with its required arguments."""
    return {tool.name: required(tool) for tool in world.catalog if tool.read_only and not found.known.get(tool.name)}


def most_common_share(values: Iterable[str]) -> float:
    """Return the share of the most common value."""
    times = Counter(value.casefold() for value in values)
    return max(times.values()) / times.total() if times else 1.0
