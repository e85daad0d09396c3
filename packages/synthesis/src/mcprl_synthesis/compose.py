"""Composes tasks from proven links: plans of calls, their execution, and the wording of the question.

Executing a plan gives the solution. A question contains no text from servers, except proven values and the names of
tools, arguments and fields.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, TypeVar

from mcprl.goals import ExpectedText, HasAll, HasNumber
from mcprl.records import ToolCall
from mcprl.seeds import derive_seed
from mcprl.tools import Catalog
from mcprl_synthesis.arguments import leaves, shaped, typed
from mcprl_synthesis.explore import Exploration, Known, Slot, Source, affinity, most_common_share
from mcprl_synthesis.reading import Ref, expected, fields_of, kind_of, number_of, ref_words, safe, words
from mcprl_synthesis.world import Access, CallRefusedError, Look, Seen

__all__ = ["HELD_STYLES", "STYLES", "Composer", "Effect", "Outcome", "Plan", "Step", "execute", "question"]

_T = TypeVar("_T")
_LENGTHS: Final = (2, 2, 2, 3, 3, 4, 5)
_WALKS: Final = 12
_SAME_TOOL: Final = 2  # in a chain: a friend of a friend
_NUMBERS: Final = 2
_MOST_GUESSED: Final = 0.34
_DIFFERENT: Final = 3
_FEW: Final = 5
_NEAR: Final = 6  # a question does not count further down a list


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call. Each argument is given in the question, or linked to a field of an earlier result (step, ref)."""

    tool: str
    given: tuple[tuple[str, Any], ...] = ()
    linked: tuple[tuple[str, int, Ref], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A proven write: after it, a read (the probe) shows the payload, or, with `removes`, no longer shows it.

    `marks` are arguments that may have any value. `probed` are the probe's arguments: each has a fixed value, or takes
    the value of one of the write's arguments.
    """

    tool: str
    arguments: tuple[tuple[str, Any], ...]
    payload: str
    marks: tuple[str, ...]
    probe: str
    probed: tuple[tuple[str, Any, str], ...]
    removes: bool

    def probe_arguments(self, written: Mapping[str, Any]) -> dict[str, Any]:
        return {name: written[bound] if bound else value for name, value, bound in self.probed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps, and the answer: an operation on fields of their results. In a join, `over` is the argument that varies."""

    shape: str
    steps: tuple[Step, ...]
    op: str  # get, sum, difference, largest, count, write
    operands: tuple[tuple[int, Ref], ...]
    over: str = ""
    effect: Effect | None = None

    @property
    def family(self) -> str:
        """Identifies the kind of question, without its entities."""
        refs = {ref_words(kind_of(ref)) for _, ref in self.operands}
        return " ".join([self.shape, self.op, *dict.fromkeys(step.tool for step in self.steps), *sorted(refs)])

    @property
    def is_linked(self) -> bool:
        return any(step.linked for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a plan: its calls and results, the values passed between calls, the answer, and the results of the
    probes before and after a write."""

    calls: tuple[ToolCall, ...]
    flat: tuple[Mapping[str, Any], ...]
    seen: tuple[Seen, ...]
    links: tuple[str, ...]
    answer: str
    check: ExpectedText | None
    probed: tuple[Seen, Seen] | None = None


async def execute(plan: Plan, look: Look, catalog: Catalog, *, strict: bool = False) -> Outcome | str:
    """Make the calls of a plan. Return the outcome, or the reason why the plan has no answer.

    With `strict`, raise CallRefusedError if a call is not made.
    """
    async with look.lease(None) as access:
        outcome = await _execute(plan, access, catalog, strict=strict)
        if plan.effect is None or isinstance(outcome, str):
            return outcome
        probe, asked = plan.effect.probe, plan.effect.probe_arguments(outcome.flat[-1])
        after = await access.see(probe, shaped(catalog[probe], asked))
        return replace(outcome, probed=(await look.read(probe, asked), after))


async def _execute(plan: Plan, access: Access, catalog: Catalog, *, strict: bool) -> Outcome | str:
    calls: list[ToolCall] = []
    flat: list[dict[str, Any]] = []
    seen: list[Seen] = []
    links: list[str] = []
    for step in plan.steps:
        arguments: dict[str, Any] = dict(step.given)
        for name, source, ref in step.linked:
            value = fields_of(seen[source].text).get(ref)
            if value is None:
                return "a field is missing"
            links.append(value.lstrip("#@"))
            arguments[name] = typed(links[-1], leaves(catalog[step.tool])[name].schema)
        flat.append(arguments)
        calls.append(ToolCall(name=step.tool, arguments=shaped(catalog[step.tool], arguments)))
        seen.append(await access.see(step.tool, calls[-1].arguments))
        if strict and seen[-1].refused:
            raise CallRefusedError(seen[-1].text)
        if not seen[-1].worked:
            return "a call failed"
    values = [value for place, ref in plan.operands if (value := fields_of(seen[place].text).get(ref)) is not None]
    if len(values) < len(plan.operands):
        return "a field is missing"
    named = [str(flat[place].get(plan.over, "")) for place, _ in plan.operands]
    answer = ("Done.", None) if plan.op == "write" else _answer(plan.op, values, named)
    why = answer if isinstance(answer, str) else _why_trivial(plan, calls, links, answer[0])
    if why is not None or isinstance(answer, str):
        return why or "no answer"
    return Outcome(
        calls=tuple(calls), flat=tuple(flat), seen=tuple(seen), links=tuple(links), answer=answer[0], check=answer[1]
    )


def _answer(op: str, values: Sequence[str], named: Sequence[str]) -> tuple[str, ExpectedText] | str:
    """Return the text of the answer and how it is checked, or why there is none."""
    if op == "get":
        check = expected(values[0], at_most=_NUMBERS)
        return "the value is not suitable as an answer" if check is None else (values[0], check)
    numbers = [number for value in values if (number := number_of(value)) is not None]
    if len(numbers) < len(values):
        return "a value is not a number"
    if op == "largest":
        best = [name for name, number in zip(named, numbers, strict=True) if number == max(numbers)]
        if len(best) > 1 or len({name.casefold() for name in named}) < len(named):
            return "the answer is not unique"
        return best[0], HasAll(members=(best[0],), none_of=tuple(name for name in named if name != best[0]))
    if op == "count":
        larger = sum(number > numbers[-1] for number in numbers[:-1])
        return str(larger), HasNumber(value=larger, at_most=1)
    total = sum(numbers, Decimal(0)) if op == "sum" else numbers[0] - numbers[1]
    exponent = max(int(number.as_tuple().exponent) for number in numbers)
    tolerance = float(Decimal(5).scaleb(exponent - 1)) if exponent < 0 else 0.0
    return f"{total:f}", HasNumber(value=float(total), tolerance=tolerance, at_most=_NUMBERS)


def _why_trivial(plan: Plan, calls: Sequence[ToolCall], links: Sequence[str], answer: str) -> str | None:
    """Return why a plan is too trivial, for example because a linked value is already in the question, or None."""
    given = {str(value).casefold() for step in plan.steps for _, value in step.given}
    for link in links if plan.shape.startswith("chain") else ():
        if link.casefold() in given:
            return "a linked value is already in the question"
        given.add(link.casefold())
    if plan.op == "get" and answer.lstrip("#@").casefold() in {*given, *(link.casefold() for link in links)}:
        return "the answer is an argument of one of the calls"
    if not all(map(safe, links)):
        return "a linked value is not a name"
    return "two calls are the same" if len({repr(call) for call in calls}) < len(calls) else None


class Composer:
    """Draws random plans from the exploration."""

    def __init__(self, found: Exploration, catalog: Catalog, seed: int) -> None:
        self.found = found
        self.catalog = catalog
        self.seed = seed
        self.labels = {
            tool: {ref: values for ref, values in found.labels(tool).items() if _is_near(ref)} for tool in found.known
        }
        self.values: dict[Slot, list[Any]] = {
            slot: list(values) for slot, values in found.proven.items()
        } | found.options
        self.follows: dict[Source, list[Slot]] = {}
        for slot, sources in found.links.items():
            for source in sources:
                self.follows.setdefault(source, []).append(slot)

    def held(self, kind: str, value: object) -> bool:
        """Return True if an entity or a kind of question (a family) is held out for validation."""
        return derive_seed(self.seed, kind, str(value).casefold()) % (10 if kind == "family" else 5) == 0

    def entities(self, plan: Plan, links: Sequence[str]) -> list[str]:
        """Return a task's entities, which must be in one split: linked values, and values of varied arguments."""
        given = [
            str(value)
            for step in plan.steps
            for name, value in step.given
            if isinstance(value, str) and self._varies(step.tool, name, value)
        ]
        return list(dict.fromkeys(value.casefold() for value in (*given, *links)))

    def _varies(self, tool: str, name: str, value: str) -> bool:
        """Return True if other tasks may give the argument another known value."""
        known = [self.found.proven.get((tool, name), ())]
        return any(len(values) >= _FEW for values in (*known, *self.sources(tool, name, value)))

    def sources(self, tool: str, name: str, value: Any) -> list[list[Any]]:
        """Return the values from which a value that a tool writes may come, by source. A new word has no source."""
        if self.catalog[tool].read_only:
            return []
        server, catalog = self.catalog[tool].server, self.catalog
        return [
            list(values)
            for source, values in self.found.pool.items()
            if source[0] and catalog[source[0]].server == server and affinity(name, source) > 0 and value in values
        ]

    def draw(self, shape: str, stream: random.Random) -> Plan | None:
        """Draw a plan of the given shape; None if the draw fails."""
        if shape in {"single", "chain"}:
            length = 1 if shape == "single" else stream.choice(_LENGTHS)
            # Most walks of a long chain end early.
            return next((plan for _ in range(_WALKS) if (plan := self._chain(length, stream)) is not None), None)
        return self._compare(stream) if shape == "compare" else self._join(stream, linked=shape == "linked join")

    def _call(self, tool: str, stream: random.Random) -> Known | None:
        """Return a call that worked with proven values only. Omit optional arguments that have their default value."""
        usable = [each for each in self.found.known.get(tool, ()) if self._is_proven(each)]
        if not usable:
            return None
        known, named = stream.choice(usable), leaves(self.catalog[tool])
        given = {n: v for n, v in known.arguments.items() if named[n].required or named[n].schema.get("default") != v}
        return replace(known, arguments=given)

    def _is_proven(self, known: Known) -> bool:
        return all(value in self.values.get((known.tool, name), ()) for name, value in known.arguments.items())

    def _chain(self, length: int, stream: random.Random) -> Plan | None:
        tool = _pick([tool for tool in self.found.known if self.catalog[tool].read_only], stream)
        first = None if tool is None else self._call(tool, stream)
        if first is None:
            return None
        steps = [Step(tool=first.tool, given=tuple(first.arguments.items()))]
        for place in range(length - 1):
            ways = [
                (ref, slot)
                for ref in self.labels[steps[-1].tool]
                if place or ref in first.fields
                for slot in self.follows.get((steps[-1].tool, kind_of(ref)), ())
                if sum(step.tool == slot[0] for step in steps) < _SAME_TOOL
            ]
            way = _pick(ways, stream)
            step = None if way is None else self._linked(way[1], place, way[0], stream)
            if step is None:
                return None
            steps.append(step)
        last = steps[-1].tool
        known = first.fields if length == 1 else self.labels[last]
        ref = _pick([ref for ref in self.labels[last] if ref in known and self._is_answer(last, ref)], stream)
        shape = "single" if length == 1 else f"chain {length}"
        return ref and Plan(shape=shape, steps=tuple(steps), op="get", operands=((length - 1, ref),))

    def _linked(self, slot: Slot, source: int, ref: Ref, stream: random.Random) -> Step | None:
        tool, name = slot
        call = self._call(tool, stream)
        if call is None:
            return None
        others = tuple((each, value) for each, value in call.arguments.items() if each != name)
        return Step(tool=tool, given=others, linked=((name, source, ref),))

    def _is_answer(self, tool: str, ref: Ref) -> bool:
        """Return True if the values of a field differ enough to ask for them."""
        values = self.labels[tool][ref]
        if len(values) == 1 and _is_of_list(kind_of(ref)):
            return True
        return len(values) >= _DIFFERENT and most_common_share(values) <= _MOST_GUESSED

    def _numbers(self, tool: str) -> list[Ref]:
        return [
            ref
            for ref, values in self.labels[tool].items()
            if len(values) >= _DIFFERENT and all(map(number_of, values))
        ]

    def _join(self, stream: random.Random, *, linked: bool) -> Plan | None:
        """Draw an operation over several calls, one per value: given values, or the entries of a list."""
        op = stream.choice(("sum", "difference", "largest", "count"))
        number = 2 if op == "difference" else 4 if op == "count" else stream.choice((3, 4))
        slots = [slot for slot in self.values if len(self.values[slot]) >= number and self._numbers(slot[0])]
        lists = [(source, found) for source, found in self.follows.items() if source[0] and _is_of_list(source[1])]
        way = _pick([(source, slot) for source, found in lists for slot in found if self._numbers(slot[0])], stream)
        slot = (None if way is None else way[1]) if linked else _pick(slots, stream)
        if slot is None or (first := self._linked(slot, 0, ("", ""), stream)) is None:
            return None
        (tool, over), steps = slot, list[Step]()
        if linked and way is not None:
            call = self._call(way[0][0], stream)
            named = () if call is None else call.fields
            entries = [ref for ref in self.labels[way[0][0]] if ref in named and kind_of(ref) == way[0][1]]
            if call is None or len(entries) < number:
                return None
            start = stream.randrange(len(entries) - number + 1)
            steps = [Step(tool=way[0][0], given=tuple(call.arguments.items()))]
            steps += [replace(first, linked=((over, 0, ref),)) for ref in entries[start : start + number]]
        else:
            side = stream.random() < 0.2
            split = slot in self.found.proven
            values = [v for v in self.values[slot] if not split or self.held("entity", v) == side]
            if len(values) < number:
                return None
            chosen = stream.sample(values, number)
            steps = [replace(first, given=(*first.given, (over, value)), linked=()) for value in chosen]
        ref = stream.choice(self._numbers(tool))
        operands = tuple((place, ref) for place in range(len(steps) - number, len(steps)))
        return Plan(shape="linked join" if linked else "join", steps=tuple(steps), op=op, operands=operands, over=over)

    def _compare(self, stream: random.Random) -> Plan | None:
        """Draw a comparison of two tools that know the same entity, on different servers if possible."""
        slots = [slot for slot, values in self.found.proven.items() if values and self._numbers(slot[0])]
        pairs = [(one, two) for one in slots for two in slots if one[0] < two[0]]
        apart = [pair for pair in pairs if self.catalog[pair[0][0]].server != self.catalog[pair[1][0]].server]
        pair = _pick(apart or pairs, stream)
        shared = [] if pair is None else [v for v in self.found.proven[pair[0]] if v in self.found.proven[pair[1]]]
        calls = [] if pair is None else [self._call(tool, stream) for tool, _ in pair]
        if pair is None or not shared or None in calls:
            return None
        value = stream.choice(shared)
        steps = tuple(
            Step(tool=tool, given=tuple({**(call.arguments if call else {}), name: value}.items()))
            for (tool, name), call in zip(pair, calls, strict=True)
        )
        operands = tuple((place, stream.choice(self._numbers(pair[place][0]))) for place in range(2))
        return Plan(shape="compare", steps=steps, op=stream.choice(("sum", "difference")), operands=operands)


def _pick(options: Sequence[_T], stream: random.Random) -> _T | None:
    return stream.choice(options) if options else None


def _is_of_list(kind: Ref) -> bool:
    return kind[0].endswith("*") or (kind[1] == "*" and kind[0] != "part")


def _is_near(ref: Ref) -> bool:
    numbers = [int(word) for word in " ".join(ref).split(" ") if word.isdigit()]
    return ref[0] == "part" or not numbers or numbers[0] <= _NEAR


# ---- words ----

STYLES: Final = (0, 1)
HELD_STYLES: Final = (2,)
_FIRST = ("Use {call} and take {ref}.", "Begin with {call}: it gives {ref}.", "First, {call}; note {ref}.")
_NEXT = ("Use {call} and take {ref}.", "Go on with {call}: it gives {ref}.", "After that, {call}; note {ref}.")
_LAST = ("Use {call}. What is {ref}?", "Finish with {call}: answer with {ref}.", "Last, {call}; tell me {ref}.")
_ONLY = ("Use {call}. What is {ref}?", "What is {ref} in the result of {call}?", "Tell me {ref}, as {call} has it.")
_EACH = ("Use {tool} for {over} {all}.", "Call {tool} once per {over}: {all}.", "For {all} as {over}, ask {tool}.")
_WRITE = ("Use {call}.", "Now call {call}.", "Have {call} done.")
_START = ("Use {call}.", "Begin with {call}.", "First, {call}.")
_ASK: Final[Mapping[str, Sequence[str]]] = {
    "sum": ("What is the sum of {ref}?", "Add up {ref}.", "How much is {ref} in total?"),
    "difference": (
        "What is {ref} of the first minus that of the second?",
        "Subtract {ref} of the second from that of the first.",
        "By how much does {ref} of the first exceed that of the second, with its sign?",
    ),
    "largest": (
        "Which {over} has the largest {bare}?",
        "Answer with the {over} whose {bare} is largest.",
        "Name the {over} with the highest {bare}.",
    ),
    "count": (
        "For how many of the first {n} is {ref} larger than for the last?",
        "Count those among the first {n} whose {bare} is above that of the last.",
        "How many of the first {n} exceed the last in {bare}?",
    ),
}
_PLUS = (
    "Use {calls}. What is {one} plus {two}?",
    "Call {calls}. Add {two} to {one}.",
    "Ask {calls}. Sum {one} and {two}.",
)
_MINUS = (
    "Use {calls}. What is {one} minus {two}?",
    "Call {calls}. Subtract {two} from {one}.",
    "Ask {calls}. Take {two} off {one}.",
)


def question(plan: Plan, style: int) -> str:
    """Return the question of a plan."""
    if plan.shape in {"join", "linked join"}:
        return _question_of_join(plan, style)
    if plan.shape == "compare":
        calls = " and ".join(map(_call_words, plan.steps))
        one, two = (f"{ref_words(ref)} of {words(plan.steps[place].tool)}" for place, ref in plan.operands)
        return (_PLUS if plan.op == "sum" else _MINUS)[style].format(calls=calls, one=one, two=two)
    taken = {source: ref for step in plan.steps for _, source, ref in step.linked}
    taken |= dict(plan.operands)
    last = len(plan.steps) - 1
    parts: list[str] = []
    for place, step in enumerate(plan.steps):
        ending = _WRITE if plan.op == "write" else _ONLY if last == 0 else _LAST
        form = ending if place == last else _NEXT if place else _FIRST
        parts.append(form[style].format(call=_call_words(step), ref=ref_words(taken.get(place, ("", "")))))
    return " ".join(parts)


def _question_of_join(plan: Plan, style: int) -> str:
    ref = plan.operands[0][1]
    branches = [plan.steps[place] for place, _ in plan.operands]
    fixed = _arguments([(name, value) for name, value in branches[0].given if name != plan.over])
    over, tool = words(plan.over), words(branches[0].tool) + (f" with {fixed}" if fixed else "")
    given = [str(dict(step.given).get(plan.over)) for step in branches]
    named = [ref_words(step.linked[0][2]) for step in branches if step.linked] or given
    each = _EACH[style].format(tool=tool, over=over, all=f"{', '.join(named[:-1])} and {named[-1]}")
    bare = ref_words(ref).removeprefix("the ")
    asked = _ASK[plan.op][style].format(ref=ref_words(ref), bare=bare, over=over, n=len(named) - 1)
    start = [_START[style].format(call=_call_words(plan.steps[0]))] if plan.shape == "linked join" else []
    return " ".join([*start, each, asked])


def _call_words(step: Step) -> str:
    given = _arguments(step.given)
    named = [*(f"that as {words(name)}" for name, _, _ in step.linked), *([given] if given else [])]
    return words(step.tool) + (f" with {' and '.join(named)}" if named else "")


def _arguments(given: Sequence[tuple[str, Any]]) -> str:
    return " and ".join(f"{words(name)} {value}" for name, value in given)
