"""Finds write tools that change the result of a read, and plans tasks that use them.

An effect is proven in a separate episode: a read before the write does not show a value, the same read after it does
(or the other way round for a removal). Reads in other episodes show that the server was reset.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import Any, Final

from mcprl.episodes.rewards import meets
from mcprl.goals import Contains
from mcprl.seeds import derive_seed
from mcprl.tools import Tool
from mcprl_synthesis.arguments import required, shaped
from mcprl_synthesis.compose import Composer, Effect, Plan, Step
from mcprl_synthesis.explore import Exploration, affinity
from mcprl_synthesis.world import Access, Look, World

__all__ = ["codeword", "draw_write", "find_effects"]

_COMBINATIONS: Final = 24
_READS: Final = 24
_EFFECTS_PER_TOOL: Final = 2
_VALUES: Final = 12


def codeword(stream: random.Random) -> str:
    """Return a made-up word that no server knows: "kemufo482"."""
    syllables = (stream.choice("bdfgklmnprstvz") + stream.choice("aeiou") for _ in range(3))
    return "".join(syllables) + str(stream.randrange(100, 1000))


async def find_effects(world: World, found: Exploration, seed: int) -> list[Effect]:
    """Try the tools that write, on servers for which writes are allowed."""
    tools = [tool for tool in world.catalog if not tool.read_only and world.may_call(tool)]
    listed = await asyncio.gather(*(_effects_of(world, found, tool, seed) for tool in tools))
    return [effect for effects in listed for effect in effects]


async def _effects_of(world: World, found: Exploration, tool: Tool, seed: int) -> list[Effect]:
    """Try values until some writes have an effect. After a write that worked, the server is replaced. A failed write is
    assumed to change nothing; every task is proven on its own servers later."""
    stream = random.Random(derive_seed(seed, "writes", tool.name))
    names, look, effects = required(tool), world.look(0), list[Effect]()
    choices = [_choices(found, world, tool, name, codeword(stream)) for name in names]
    tried = islice(product(*choices), _COMBINATIONS)
    values: tuple[Any, ...] | None = ()
    while values is not None and len(effects) < _EFFECTS_PER_TOOL:
        async with look.lease(None) as access:
            while (values := next(tried, None)) is not None:
                arguments = dict(zip(names, values, strict=True))
                if (await access.see(tool.name, shaped(tool, arguments))).worked:
                    marks = [name for name, choice in zip(names, choices, strict=True) if arguments[name] == choice[-1]]
                    effects += await _effect_of(look, access, world, found, tool, arguments, marks)
                    break
    return effects


def _choices(found: Exploration, world: World, tool: Tool, name: str, mark: str) -> list[Any]:
    """Return values to try for a write's argument: those known under a similar name on its server, then a new word."""
    sources = [s for s in found.pool if s[0] and world.catalog[s[0]].server == tool.server and affinity(name, s) > 0]
    sources.sort(key=lambda source: -affinity(name, source))
    vouched = [values[0] for slot, values in found.options.items() if slot[1] == name and values]
    return list(dict.fromkeys([*vouched[:1], *(next(iter(found.pool[source])) for source in sources[:2]), mark]))


async def _effect_of(
    look: Look,
    access: Access,
    world: World,
    found: Exploration,
    tool: Tool,
    arguments: Mapping[str, Any],
    marks: Sequence[str],
) -> list[Effect]:
    """Return the first effect of a write that `access` made; [] if no read shows one."""
    for name, given in _reads(world, found, tool, arguments):
        old = await look.read(name, given)
        new = await access.see(name, shaped(world.catalog[name], given))
        bound = {each: next((w for w, v in arguments.items() if v == value), "") for each, value in given.items()}
        for argument, value in arguments.items():
            shown = Contains(text=str(value))
            was, now = old.worked and meets(shown, old.text), new.worked and meets(shown, new.text)
            # A key of the read cannot be what the read proves.
            if was == now or argument in bound.values() or (now and argument not in marks):
                continue
            effect = Effect(
                tool=tool.name,
                arguments=tuple(arguments.items()),
                payload=argument,
                marks=tuple(marks),
                probe=name,
                probed=tuple((each, value, bound[each]) for each, value in given.items()),
                removes=was,
            )
            return [effect]
    return []


def _reads(
    world: World, found: Exploration, tool: Tool, arguments: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Return reads of the same server: first those of the written values, which show what was written where."""
    others = [other for other in world.catalog if other.server == tool.server and other.read_only]
    bound = [
        (other.name, {required(other)[0]: value})
        for other in others
        if len(required(other)) == 1
        for value in arguments.values()
    ]
    known = [(other.name, dict(call.arguments)) for other in others for call in found.known.get(other.name, ())[:3]]
    return [*bound, *known][:_READS]


def draw_write(composer: Composer, effects: Sequence[Effect], stream: random.Random) -> Plan | None:
    """Draw a plan that writes a new word, or a value that another call finds."""
    effect = stream.choice(effects)
    given: dict[str, Any] = {}
    for name, value in effect.arguments:
        others = next(iter(composer.sources(effect.tool, name, value)), [value])
        given[name] = codeword(stream) if name in effect.marks else stream.choice(others[:_VALUES])
    steps: list[Step] = []
    linked: tuple[tuple[str, int, Any], ...] = ()
    if not effect.removes and stream.random() < 0.7:
        read = composer.draw("single", stream)
        if read is None:
            return None
        steps, linked = list(read.steps), ((effect.payload, 0, read.operands[0][1]),)
        del given[effect.payload]
    steps.append(Step(tool=effect.tool, given=tuple(given.items()), linked=linked))
    return Plan(shape="write", steps=tuple(steps), op="write", operands=(), effect=effect)
