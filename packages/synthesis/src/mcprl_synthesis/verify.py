"""Verifies tasks by execution. A task is kept only if it passes every check; rejections are counted by reason.

The solution earns 1.0 with the same values on two sets of fresh servers, which start at least a minute apart and, with
libfaketime, have clocks a day apart; doing nothing earns 0; changing an argument changes the answer and earns less than
1; the trivial policies that `mcprl tasks import` also tries earn at most half; the question reveals neither the answer
nor a value passed between calls; no other task asks the same question.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from mcprl.episodes.demonstrations import play
from mcprl.episodes.rewards import meets, numbers_in
from mcprl.goals import Contains, ExpectedCall, ExpectedState, ExpectedText, Goal, HasAll
from mcprl.records import Difficulty, Solution, Task, ToolCall
from mcprl.seeds import derive_seed
from mcprl.tasks.validation import normalised_question
from mcprl.tools import Tool
from mcprl_synthesis.arguments import shaped
from mcprl_synthesis.compose import HELD_STYLES, STYLES, Composer, Outcome, Plan, execute, question
from mcprl_synthesis.derived_checks import CHEAP, REWARDS, Call, Conversation, Corpus, prove, reward, why_unproven
from mcprl_synthesis.reading import expected, fields_of, junk, words
from mcprl_synthesis.world import CallRefusedError, Look, Seen, World

__all__ = ["Draft", "Verifier"]

_T = TypeVar("_T")
_OTHER_VALUES: Final = 2
_PARALLEL: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A plan that was executed, and the task made from it."""

    plan: Plan
    outcome: Outcome
    task: Task
    held: bool


@dataclass(slots=True)
class Verifier:
    """Turns plans into tasks. `rejected` counts candidates by reason; `volatile` names fields that change over time."""

    world: World
    composer: Composer
    seed: int
    distractors: int = 3
    rejected: Counter[str] = field(default_factory=Counter[str])
    volatile: set[str] = field(default_factory=set[str])
    wordings: Counter[str] = field(default_factory=Counter[str])
    drafts: list[Draft] = field(default_factory=list[Draft])
    _asked: set[str] = field(default_factory=set[str])

    async def admit(self, plans: Sequence[Plan]) -> list[Draft]:
        """Verify plans, and return the tasks that passed, in order."""
        look = self.world.look(0)
        outcomes = await gathered(execute(plan, look, self.world.catalog) for plan in plans)
        drafts = self._kept(
            outcome if isinstance(outcome, str) else self._draft(plan, outcome)
            for plan, outcome in zip(plans, outcomes, strict=True)
        )
        # The servers of look 2 start a minute after those of look 1, so perturb in between.
        first, second = (partial(self._plays, self.world.look(number)) for number in (1, 2))
        for check in (first, self._depends, second):
            reasons = await gathered(check(draft) for draft in drafts)
            drafts = self._kept(reason or draft for draft, reason in zip(drafts, reasons, strict=True))
        families: dict[str, list[Conversation]] = {}
        for draft in (*self.drafts, *drafts):
            families.setdefault(draft.plan.family, []).append(conversation_of(draft))
        corpora = {family: Corpus(conversations) for family, conversations in families.items()}
        drafts = self._kept([self._resists(draft, corpora[draft.plan.family]) or draft for draft in drafts])
        self.drafts += drafts
        return drafts

    def _kept(self, outcomes: Iterable[Draft | str]) -> list[Draft]:
        """Return the drafts that passed, and count the reasons why the others failed."""
        listed = list(outcomes)
        self.rejected.update(each for each in listed if isinstance(each, str))
        return [each for each in listed if not isinstance(each, str)]

    def _draft(self, plan: Plan, outcome: Outcome) -> Draft | str:
        composer = self.composer
        if any(name in self.volatile for name in field_names(plan)):
            return "a field is volatile"
        values = [fields_of(outcome.seen[place].text).get(ref, "") for place, ref in fields_used(plan)]
        near = [str(self.world.recorded_on + timedelta(days=days)) for days in (-1, 0, 1)]
        if any(day in value for day in near for value in values):
            return "a field depends on the clock"
        entities = composer.entities(plan, outcome.links)
        sides = {composer.held("entity", entity) for entity in entities}
        if len(sides) > 1:
            return "its entities are from both training and validation"
        held = sides == {True} or (not sides and composer.held("family", plan.family))
        if not held and composer.held("family", plan.family):
            return "a held-out kind of question about training entities"
        named = derive_seed(self.seed, "style", plan.family, repr(plan))
        styles = HELD_STYLES if held and named % 2 else STYLES
        asked = question(plan, styles[named // 2 % len(styles)])
        if outcome.check is not None and meets(outcome.check, asked):
            return "the question contains the answer"
        if any(meets(Contains(text=link), asked) for link in outcome.links):
            return "the question contains a value that a call must find"
        task = self._task(plan, outcome, asked, entities)
        key = normalised_question(task)
        if key in self._asked:
            return "a duplicate"
        self._asked.add(key)
        return Draft(plan=plan, outcome=outcome, task=task, held=held)

    def _task(self, plan: Plan, outcome: Outcome, asked: str, entities: Sequence[str]) -> Task:
        number = len(outcome.calls)
        needed = list(dict.fromkeys(call.name for call in outcome.calls))
        goal = self._goal(plan, outcome)
        stream = random.Random(derive_seed(self.seed, "distractors", asked))
        others = [tool.name for tool in self.world.catalog if tool.name not in needed]
        tools = [*needed, *stream.sample(others, min(self.distractors, len(others)))]
        stream.shuffle(tools)
        servers = {self.world.catalog[name].server for name in needed}
        return Task(
            id=f"{plan.shape.replace(' ', '-')}-{derive_seed(self.seed, 'id', asked) % 16**8:08x}",
            prompt=({"role": "user", "content": asked},),
            goal=goal,
            tools=tuple(tools),
            difficulty=Difficulty.EASY if number == 1 else Difficulty.MEDIUM if number <= 3 else Difficulty.HARD,
            max_turns=number + 3,
            solution=Solution(calls=outcome.calls, answer=outcome.answer),
            metadata={
                "family": plan.family,
                "entities": list(entities),
                "links": list(outcome.links),
                "linked": plan.is_linked,
                "servers": sorted(servers),
                "given": [dict(step.given) for step in plan.steps],
            },
        )

    def _goal(self, plan: Plan, outcome: Outcome) -> Goal:
        if plan.effect is None or outcome.probed is None:
            calls = tuple(ExpectedCall(tool=call.name, arguments=call.arguments) for call in outcome.calls)
            return Goal(answer=outcome.check, calls=calls, in_any_order=True)
        effect, written, catalog = plan.effect, outcome.flat[-1], self.world.catalog
        made = {name: value for name, value in written.items() if name != effect.payload or effect.removes}
        calls = (
            *(ExpectedCall(tool=call.name, arguments=call.arguments) for call in outcome.calls[:-1]),
            ExpectedCall(tool=effect.tool, arguments=whole_arguments(catalog[effect.tool], written, made)),
        )
        value = str(written[effect.payload])
        # More numbers, or the words of the question, are a list of guesses.
        limit = len(set(numbers_in(outcome.probed[1].text))) + 1
        check = None if effect.removes else expected(value, at_most=limit)
        shown = [anchor] if (anchor := common_word(outcome.probed, value)) is not None else []
        unwanted = [value] if effect.removes else [words(effect.tool), *others_read(outcome, value)]
        texts: list[ExpectedText] = [HasAll(members=(word,), none_of=tuple(unwanted)) for word in shown]
        others = [Contains(text=str(each)) for name, each in made.items() if name in effect.marks]
        texts += [each for each in others if not effect.removes and meets(each, outcome.probed[1].text)]
        texts += [] if check is None else [check]
        asked = shaped(catalog[effect.probe], effect.probe_arguments(written))
        state = ExpectedState(tool=effect.probe, arguments=asked, texts=tuple(texts))
        return Goal(calls=calls, in_any_order=True, state=(state,))

    async def _depends(self, draft: Draft) -> str | None:
        """Check that each given argument matters, and that a trivial write earns little."""
        try:
            return await self._perturbed(draft) or await self._resists_cheap_writes(draft)
        except CallRefusedError as error:
            return f"not verified: {error}"

    async def _perturbed(self, draft: Draft) -> str | None:
        """Check that other proven values of each argument give another answer, which earns less than 1."""
        plan, look = draft.plan, self.world.look(0)
        for place, step in enumerate(plan.steps):
            for name, value in step.given:
                others = self._others(step.tool, name, value)[: _OTHER_VALUES if plan.effect is None else 1]
                plans = [with_argument(plan, place, name, other) for other in others]
                outcomes = [await execute(each, look, self.world.catalog, strict=True) for each in plans]
                made = [each for each in outcomes if isinstance(each, Outcome)]
                if any([await self._earned(draft, each.calls, each.answer, each) >= 1.0 for each in made]):
                    return "a perturbed call still earns 1"
                check = draft.task.goal.answer
                if made and check is not None and all(meets(check, each.answer) for each in made):
                    return "an argument does not change the answer"
        return None

    async def _earned(
        self, draft: Draft, calls: Sequence[ToolCall], answer: str, outcome: Outcome | None = None
    ) -> float:
        if draft.plan.effect is None and outcome is not None:
            return reward(draft.task.goal, as_calls(outcome), answer)
        return (await play(draft.task, self.world.look(0), calls, answer, REWARDS)).reward

    async def _resists_cheap_writes(self, draft: Draft) -> str | None:
        """Check that writing the question, all results, or a wrong value earns at most `CHEAP`."""
        effect, (*reads, write) = draft.plan.effect, draft.outcome.calls
        if effect is None or draft.outcome.probed is None:
            return None
        before, after = draft.outcome.probed
        state = draft.task.goal.state[0]
        if len(state.texts) < (1 if effect.removes else 2):
            return "the probe's result has nothing to check"
        if not after.worked or (before.worked and all(meets(text, before.text) for text in state.texts)):
            return "the probe's result does not show the write"
        everything = " ".join(seen.text for seen in draft.outcome.seen[:-1])
        written = draft.outcome.flat[-1]
        for said in (draft.task.prompt[0]["content"], everything, "x"):
            wrong = junk(written[effect.payload], random.Random(self.seed)) if effect.removes else said
            arguments = shaped(self.world.catalog[effect.tool], {**written, effect.payload: wrong})
            cheap = replace(write, arguments=arguments)
            if said and await self._earned(draft, (*reads, cheap), said) > CHEAP:
                return "a trivial policy passes: it writes everything that it has read"
        return None

    def _others(self, tool: str, name: str, value: Any) -> list[Any]:
        slot = (tool, name)
        values = self.composer.values.get(slot, []) or next(iter(self.composer.sources(*slot, value)), [value])
        if set(values) == {value}:
            values = [junk(value, random.Random(derive_seed(self.seed, "junk", *slot, str(value))))]
        values = [other for other in dict.fromkeys(values) if other != value]
        stream = random.Random(derive_seed(self.seed, "perturbed", *slot, str(value)))
        return stream.sample(values, min(_OTHER_VALUES, len(values)))

    async def _plays(self, look: Look, draft: Draft) -> str | None:
        """Play the solution, then an empty episode, on fresh servers. The fields used must have the same values."""
        task, solution = draft.task, draft.outcome
        trial = await play(task, look, solution.calls, solution.answer, REWARDS)
        seen = [turn.observations[0].text for turn in trial.turns if turn.observations]
        for place, ref in fields_used(draft.plan):
            before = fields_of(solution.seen[place].text).get(ref)
            now = fields_of(seen[place]).get(ref) if place < len(seen) else None
            if now is None:
                return "a call returns a different result on fresh servers"
            if now != before:
                self.volatile.add(f"{draft.plan.steps[place].tool}: {' '.join(ref)}")
                return "a field is volatile"
        if trial.reward != 1.0 or trial.faults:
            return "the solution does not earn 1 on fresh servers"
        idle = await play(task, look, (), "", REWARDS)
        return None if idle.reward == 0.0 else "doing nothing earns a reward"

    async def recheck(self, draft: Draft) -> str | None:
        """Recheck everything that a new wording of the question can change."""
        key = normalised_question(draft.task)
        if key in self._asked:
            return "a duplicate"
        family = [other for other in self.drafts if other.plan.family == draft.plan.family]
        corpus = Corpus([conversation_of(draft if other.task.id == draft.task.id else other) for other in family])
        why = await self._depends(draft) or self._resists(draft, corpus) or await self._plays(self.world.look(2), draft)
        if why is None:
            self._asked.add(key)
        return why

    def _resists(self, draft: Draft, corpus: Corpus) -> str | None:
        """Try the policies of `mcprl tasks import`: those that should earn 1 or 0, and trivial ones."""
        if draft.task.goal.answer is None:
            return None
        conversation = conversation_of(draft)
        return why_unproven(prove(draft.task.goal, conversation, conversation.calls, corpus))


async def gathered(works: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all, a few at a time, and return the results in order."""
    places = asyncio.Semaphore(_PARALLEL)

    async def one(work: Coroutine[Any, Any, _T]) -> _T:
        async with places:
            return await work

    return list(await asyncio.gather(*map(one, works)))


def conversation_of(draft: Draft) -> Conversation:
    return Conversation(
        prompt=draft.task.prompt, calls=as_calls(draft.outcome), answer=draft.outcome.answer, defaults={}
    )


def as_calls(outcome: Outcome) -> tuple[Call, ...]:
    return tuple(
        Call(tool=call.name, arguments=call.arguments, text=seen.text, failed=False, writes=False)
        for call, seen in zip(outcome.calls, outcome.seen, strict=True)
    )


def others_read(outcome: Outcome, value: str) -> list[str]:
    """Return the other values that were read before a write, because writing all of them must not pass."""
    read = [fields_of(seen.text) for seen in outcome.seen[:-1]]
    found = [each for fields in read for (place, _), each in fields.items() if place in {"the", "first"}]
    known = outcome.probed[0].text if outcome.probed is not None else ""
    others = [
        each for each in found if 3 < len(each) < 40 and value not in each and each not in value and each not in known
    ]
    return list(dict.fromkeys(others))[:3]


def common_word(probed: tuple[Seen, Seen], value: str) -> str | None:
    """Return a word, other than the value, that a probe shows before and after a write."""
    before, after = (re.findall(r"[A-Za-z]{3,}", seen.text) if seen.worked else [] for seen in probed)
    known = before or after  # a read that failed before the write
    return next((word for word in known if word in after and word.casefold() not in value.casefold()), None)


def whole_arguments(tool: Tool, written: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that are already complete with only the values in `made`."""
    whole = shaped(tool, written)
    return {name: value for name, value in shaped(tool, made).items() if whole[name] == value}


def with_argument(plan: Plan, place: int, name: str, value: Any) -> Plan:
    """Return a plan with another value for one given argument."""
    step = plan.steps[place]
    given = tuple((each, value if each == name else old) for each, old in step.given)
    return replace(plan, steps=(*plan.steps[:place], replace(step, given=given), *plan.steps[place + 1 :]))


def fields_used(plan: Plan) -> Iterator[tuple[int, Any]]:
    """Yield the fields that a plan reads, as (step, ref)."""
    yield from ((source, ref) for step in plan.steps for _, source, ref in step.linked)
    yield from plan.operands


def field_names(plan: Plan) -> list[str]:
    return [f"{plan.steps[place].tool}: {' '.join(ref)}" for place, ref in fields_used(plan)]
