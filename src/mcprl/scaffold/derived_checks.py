"""Derive a task's goal from a recorded conversation, and prove it with the reward code of a run.

Three kinds of checks: arguments that the question determines, values in the answer that tools returned, and what was
written where. A check is kept only if `prove` accepts it: the recorded calls and answer score 1, doing nothing scores 0,
and cheap policies score at most `CHEAP`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from mcprl.config import RewardsConfig
from mcprl.episodes.rewards import meets, numbers_in, score, weigh
from mcprl.goals import Contains, ExpectedCall, ExpectedText, ExpectedWrite, Goal, HasNumber, MeetsSome
from mcprl.records import FinishReason, Message, Observation, StopReason, ToolCall, Turn

__all__ = ["CHEAP", "REWARDS", "Call", "Conversation", "Corpus", "Derived", "derive", "prove"]

REWARDS: Final = RewardsConfig(answer=2.0, state=1.0, calls=0.25, arguments=0.25, efficiency=0.0)
"""The rewards of an imported project. Right calls alone earn less than half; recorded calls are not a measure of
efficiency."""
CHEAP: Final = 0.5
"""The most that a cheap policy may earn on a proven task."""

_MAX_FACTS = 6
_SHARE = 0.6
_MAX_CALLS = 12
_MAX_VALUE = 120
_NAMED_LINES = 3
_YEARS = range(1990, 2036)
_DASHES = re.compile(r"[‐-―−]")
_WORD = re.compile(r"[A-Za-z][A-Za-z]+")
_NAME = re.compile(r"[#@]?[\w^&][\w.&^=-]*[\w]|\w")
_SENTENCE = re.compile(r"(?:\A|[.!?:]\s+|\n)\W*")
_ITEM = re.compile(r"^[ \t]*[0-9]{1,2}[.)][ \t]", re.MULTILINE)
_LABELLED = re.compile(
    r"^[ \t*\"'-]*(?P<label>[A-Za-z][\w /-]{0,40})[\"'*]{0,3}:[\"'* ]{1,4}(?P<value>\S.*?)[\"',* ]*$", re.M
)
_SYMBOL = re.compile(r"(?<![\w.$])[A-Z][A-Z0-9]{1,5}(?![\w])|#[a-z][\w-]+")
_COUNTS = dict(
    zip(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty"],
        [*range(1, 11), 12, 20],
        strict=True,
    )
)
_WRITE_VERBS = re.compile(
    r"(?i)\b(?:post|send|share|alert|notify|brief|publish|reply|dm|message|distribut|push|let\b.{1,40}\bknow|tell|announce"
    r"|add|book|buy|cancel|create|delete|edit|file|insert|invite|move|order|pay|remove|rename|report|save|schedul|sell|set"
    r"|store|submit|update|upload|write)\w*"
)
_ANNOUNCES = re.compile(
    r"(?i)\A\W*(?:(?:now|next|first|to proceed|let me|let's|please)\b|i (?:will|'ll|am going to|need)\b|i'll\b"
    r"|(?:could|can|would) you\b|(?:what|which) \w+ .*\?|const |await )|\b(?:i will (?:now |then )?(?:proceed|start|begin)"
    r"|next, i will)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A recorded call and what its tool returned. `writes` means that the tool changes something.

    Call(tool="fmp_get_quote", arguments={"symbol": "AAPL"}, text="Price: $213.88", failed=False, writes=False)
    """

    tool: str
    arguments: Mapping[str, Any]
    text: str
    failed: bool
    writes: bool

    @property
    def as_call(self) -> ToolCall:
        return ToolCall(name=self.tool, arguments=self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A recorded conversation. `answer` is None if it ended without one, `ended_on_tool` if on what a tool returned.

    `optional` holds the default of each argument of a tool that has one.
    """

    prompt: tuple[Message, ...]
    calls: tuple[Call, ...]
    answer: str | None
    ended_on_tool: bool = False
    defaults: Mapping[tuple[str, str], Any]

    @property
    def question(self) -> str:
        return _DASHES.sub("-", "\n".join(m["content"] for m in self.prompt if m["role"] == "user"))

    @property
    def worked(self) -> tuple[Call, ...]:
        """The calls that worked, each once."""
        seen: list[Call] = []
        for call in self.calls:
            same = any(call.tool == other.tool and call.arguments == other.arguments for other in seen)
            if not call.failed and (call.writes or not same):
                seen.append(call)
        return tuple(seen)


class Corpus:
    """All conversations of an import: which names stand for which argument, and which words are in many answers."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        self.conversations = conversations
        self._values: dict[str, set[str]] = {}
        for conversation in conversations:
            for call in conversation.worked:
                for value in call.arguments.values():
                    if isinstance(value, str) and _NAME.fullmatch(value):
                        for word in _names_beside(value, call.text):
                            self._values.setdefault(word, set()).add(value.casefold())
        answers = [c.answer or "" for c in conversations]
        self._uses = Counter(word for answer in answers for word in set(_SYMBOL.findall(answer)))

    def values_of(self, name: str) -> set[str]:
        """Return the values that a name stands for: {"tsla"} for "Tesla". Empty if it is a word of many results."""
        values = self._values.get(name.casefold(), set())
        return values if len(values) <= 2 else set()

    def rarity(self, text: str) -> float:
        return 1.0 / (1 + self._uses[text])


def _names_beside(value: str, text: str) -> set[str]:
    """Return the capitalized words beside a value in the first lines: tesla and inc in "**Tesla, Inc. (TSLA)**"."""
    lines = [line for line in text.split("\n") if line.strip()][:_NAMED_LINES]
    beside = [line for line in lines if meets(Contains(text=value), line)]
    words = (word for line in beside for word in _WORD.findall(line) if word[0].isupper() and len(word) > 2)
    return {word.casefold() for word in words} - {value.casefold()}


# ---- what the question determines
# --------------------------------------------------------------------------------------


def _entities(question: str) -> set[str]:
    """Return the names in a question: #channels, @people, and words with capitals that do not begin a sentence."""
    starts = {found.end() for found in _SENTENCE.finditer(question)}
    found: set[str] = set()
    for match in _NAME.finditer(question.replace("'s ", "   ").replace("’s ", "   ")):
        word = match[0]
        is_name = any(letter.isupper() for letter in word[1:]) or (word[0].isupper() and match.start() not in starts)
        if word[0] in "#@" or is_name or any(letter.isdigit() for letter in word):
            found.add(word.lstrip("#@").casefold())
    return found


def _numbers_asked(question: str) -> set[Decimal]:
    words = (_COUNTS[word] for word in re.findall(r"[a-z]+", question.casefold()) if word in _COUNTS)
    return {*map(Decimal, words), *numbers_in(question)}


def determined(conversation: Conversation, call: Call, corpus: Corpus) -> dict[str, Any]:
    """Return the arguments of a call whose values follow from the question."""
    question = conversation.question
    names, numbers = _entities(question), _numbers_asked(question)
    named = {value for name in names for value in corpus.values_of(name)}
    earlier = conversation.calls[: conversation.calls.index(call)]
    fixed: dict[str, Any] = {}
    for name, value in call.arguments.items():
        if isinstance(value, bool) or conversation.defaults.get((call.tool, name)) == value:
            continue
        if isinstance(value, int | float):
            if Decimal(str(value)) in numbers:
                fixed[name] = value
        elif isinstance(value, str) and _NAME.fullmatch(value.strip()):
            plain = _DASHES.sub("-", value.strip()).lstrip("#@").casefold()
            if plain in names or plain in named or _is_looked_up(value, names, earlier):
                fixed[name] = value
    return fixed


def _is_looked_up(value: str, names: set[str], earlier: Sequence[Call]) -> bool:
    """Return True if an earlier result has the value in the one line that has a name of the question."""
    for call in earlier:
        lines = [] if call.failed else call.text.split("\n")
        for name in names:
            having = [line for line in lines if meets(Contains(text=f"#{name}"), line)]
            if len(having) == 1 and meets(Contains(text=value), having[0]):
                return True
    return False


# ---- values that tools returned
# ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    check: ExpectedText
    rank: tuple[float, ...]
    source: int  # the call that returned it, counted over the calls that worked


def _facts(text: str, conversation: Conversation, corpus: Corpus) -> list[_Fact]:
    """Return the values of a text that a tool returned and the question does not have, the most telling first."""
    question = conversation.question
    asked = {word.casefold()[:5] for word in _WORD.findall(question)}
    found = [*_number_facts(text, question, asked, conversation), *_word_facts(text, question, conversation, corpus)]
    unique: dict[str, _Fact] = {}
    for fact in sorted(found, key=lambda fact: fact.rank, reverse=True):
        unique.setdefault(repr(fact.check), fact)
    return list(unique.values())


def _number_facts(text: str, question: str, asked: set[str], conversation: Conversation) -> Iterator[_Fact]:
    stated = list(dict.fromkeys(numbers_in(_ITEM.sub(" ", text))))
    given = {abs(number) for number in numbers_in(question)}
    for source, call in enumerate(conversation.worked):
        if call.writes and not call.text.strip():
            continue
        for line in call.text.split("\n"):
            overlap = len(asked & {word.casefold()[:5] for word in _WORD.findall(line)})
            for returned in numbers_in(line):
                for place, number in enumerate(stated):
                    half = Decimal(5).scaleb(int(number.as_tuple().exponent) - 1)
                    exact = number == number.to_integral_value() and abs(number) < 1000
                    if abs(abs(number) - abs(returned)) > (0 if exact else half) or abs(number) in given:
                        continue
                    if number in _YEARS or returned in _YEARS:
                        continue
                    small = exact and abs(number) <= 20
                    yield _Fact(
                        check=_near(returned, half if not exact else Decimal(0)),
                        rank=(0.0 if small else 1.0, min(overlap, 3), -place),
                        source=source,
                    )


def _near(value: Decimal, half: Decimal) -> ExpectedText:
    tolerance = 0.0 if half == 0 else max(float(half), abs(float(value)) * 5e-4)
    number = HasNumber(value=float(value), tolerance=float(f"{tolerance:.2g}"), at_most=None)
    if value >= 0:
        return number
    # "fell by 1.5%" and "−1.5%" are both right.
    return MeetsSome(of=(number, replace(number, value=-number.value)), at_least=1)


def _word_facts(text: str, question: str, conversation: Conversation, corpus: Corpus) -> Iterator[_Fact]:
    for source, call in enumerate(conversation.worked):
        if call.writes:
            continue
        values = [found["value"].strip() for found in _LABELLED.finditer(call.text)]
        values = [value for value in values if 3 <= len(value) <= _MAX_VALUE and not numbers_in(value)]
        values += [symbol for symbol in _SYMBOL.findall(text) if len(symbol) > 2]
        for value in dict.fromkeys(values):
            word = Contains(text=value)
            if not meets(word, text) or not meets(word, call.text) or meets(word, question):
                continue
            place = text.casefold().find(value.casefold())
            yield _Fact(check=word, rank=(1.0 if len(value) > 6 else 0.5, corpus.rarity(value), -place), source=source)


def _some_of(facts: Sequence[_Fact], text: str, results: str, *, share: float) -> ExpectedText:
    """Return a check for most of the facts, and for fewer numbers than the results have."""
    own = len(set(numbers_in(text)))
    limit = max(own, min(max(2 * own, own + 4), len(set(numbers_in(results))) - 1))
    checks = tuple(_limited(fact.check, limit) for fact in facts)
    least = math.ceil(share * len(checks))
    return checks[0] if len(checks) == 1 else MeetsSome(of=checks, at_least=None if least == len(checks) else least)


def _limited(check: ExpectedText, limit: int) -> ExpectedText:
    match check:
        case HasNumber():
            return replace(check, at_most=limit)
        case MeetsSome():
            return replace(check, of=tuple(_limited(member, limit) for member in check.of))
        case _:
            return check


# ---- the goal
# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What was derived from a conversation. `failed` says why it is not an example; `lacks` what could not be checked.

    `calls` and the answer are a solution of the task: the calls that worked, without writes that nobody asked for.
    `goal` is None if nothing is proven. `scores` are the rewards of the policies that `prove` tried.
    """

    failed: str | None
    lacks: tuple[str, ...]
    calls: tuple[Call, ...]
    goal: Goal | None = None
    scores: Mapping[str, float] | None = None

    @property
    def kinds(self) -> dict[str, int]:
        """The number of proven checks of each kind."""
        if self.goal is None:
            return {}
        arguments = sum(len(call.arguments) for call in self.goal.calls)
        found = {"arguments": arguments, "answer": int(self.goal.answer is not None), "state": len(self.goal.writes)}
        return {kind: number for kind, number in found.items() if number}


def derive(conversation: Conversation, corpus: Corpus) -> Derived:
    """Derive and prove the goal of a conversation."""
    asked = [call for call in conversation.worked if call.writes and _is_asked(conversation, call, corpus)]
    calls = tuple(call for call in conversation.worked if call in asked or not _is_unasked(call, asked))
    facts = _facts(conversation.answer or "", conversation, corpus)
    failed = _why_failed(conversation, asked, facts)
    if failed is not None:
        return Derived(failed=failed, lacks=(), calls=calls)
    lacks: list[str] = []
    for share in (_SHARE, 1.0):
        goal, lacks = _goal(conversation, corpus, calls, asked, facts, share)
        if goal is None:
            return Derived(failed=None, lacks=tuple(lacks), calls=calls)
        scores = prove(goal, conversation, calls, corpus)
        wrong = _why_unproven(scores)
        if wrong is None:
            return Derived(failed=None, lacks=tuple(lacks), calls=calls, goal=goal, scores=scores)
        lacks = [*lacks, wrong]
    return Derived(failed=None, lacks=tuple(lacks), calls=calls)


def _is_unasked(call: Call, asked: Sequence[Call]) -> bool:
    """Return True for a write to a place, such as a channel, that nobody asked for: running code is not one."""
    return call.writes and call not in asked and "message" in call.arguments


def _is_asked(conversation: Conversation, call: Call, corpus: Corpus) -> bool:
    question = conversation.question
    named = {word.casefold() for word in _WORD.findall(call.tool)} & {
        word.casefold() for word in _WORD.findall(question)
    }
    return _WRITE_VERBS.search(question) is not None and bool(named or determined(conversation, call, corpus))


def _why_failed(conversation: Conversation, asked: Sequence[Call], facts: Sequence[_Fact]) -> str | None:
    calls = conversation.calls
    if conversation.ended_on_tool:
        return "it ends on the result of a tool"
    if conversation.answer is None and not asked:
        return "it ends without an answer"
    if calls and 2 * sum(call.failed for call in calls) > len(calls):
        return "most of its calls failed"
    if conversation.answer is not None and not facts and not asked:
        if calls and calls[-1].failed:
            return "its last call failed, and the answer states nothing that a tool returned"
        if _ANNOUNCES.search(conversation.answer):
            return "its answer announces work or asks back"
    return None


def _goal(
    conversation: Conversation,
    corpus: Corpus,
    calls: Sequence[Call],
    asked: Sequence[Call],
    facts: Sequence[_Fact],
    share: float,
) -> tuple[Goal | None, list[str]]:
    lacks: list[str] = []
    results = "\n".join(call.text for call in conversation.worked)
    answer = None
    if conversation.answer is not None and facts:
        answer = _some_of(facts[:_MAX_FACTS], conversation.answer, results, share=share)
    elif conversation.answer is not None:
        lacks.append("the answer states no value that a tool returned and the question does not have")
    writes: list[ExpectedWrite] = []
    sources = {fact.source for fact in facts[:_MAX_FACTS]}
    for call in asked:
        texts = {
            name: (_some_of(said[:_MAX_FACTS], value, results, share=share),)
            for name, value in call.arguments.items()
            if isinstance(value, str) and (said := _facts(value, conversation, corpus))
        }
        sources |= {fact.source for name in texts for fact in _facts(call.arguments[name], conversation, corpus)[:2]}
        if texts:
            arguments = determined(conversation, call, corpus)
            writes.append(ExpectedWrite(tool=call.tool, arguments=arguments, texts=texts))
        else:
            lacks.append(f"what {call.tool} wrote holds no value that a tool returned")
    expected: list[ExpectedCall] = []
    worked = conversation.worked
    for call in calls:
        arguments = determined(conversation, call, corpus)
        is_source = worked.index(call) in sources and not call.writes
        mentioned = (
            {word.casefold() for word in _WORD.findall(call.tool)}
            & {"python"}
            & set(conversation.question.casefold().split())
        )
        want = ExpectedCall(tool=call.tool, arguments=arguments)
        if (arguments or is_source or mentioned) and want not in expected and len(expected) < _MAX_CALLS:
            expected.append(want)
    if not any(call.arguments for call in expected):
        lacks.append("the question determines no argument")
    if answer is None and not writes:
        return None, lacks
    goal = Goal(answer=answer, calls=tuple(expected), in_any_order=True, writes=tuple(writes))
    return goal, lacks


# ---- the proof
# ---------------------------------------------------------------------------------------------------------


def prove(goal: Goal, conversation: Conversation, calls: Sequence[Call], corpus: Corpus) -> dict[str, float]:
    """Return the reward of each policy: the recorded one, doing nothing, perturbed ones and cheap ones."""
    answer, question = conversation.answer, conversation.question
    others = [c for c in corpus.conversations if c.question != question]
    listed = ", ".join(str(n) for call in conversation.worked for n in numbers_in(call.text))
    written = [name for write in goal.writes for name in write.texts]

    def earned(made: Sequence[Call], said: str | None, post: str | None = None) -> float:
        if post is not None:
            made = [_with_texts(call, written, post) for call in made]
        return reward(goal, made, said)

    scores = {
        "recorded": earned(calls, answer),
        "nothing": earned((), "" if answer is not None else None),
        "perturbed texts": earned(calls, _perturbed(answer or ""), "x" if written else None),
        "wrong arguments": earned([_with_wrong_arguments(call) for call in calls], "ok"),
        "question echoed": earned(calls, question, question),
        "numbers listed": earned(calls, listed, listed),
    }
    if goal.answer is not None:
        scores["empty answer"] = earned(calls, "")
    texts = {c.answer for c in others if c.answer} | {
        value
        for c in others
        for call in c.worked
        if call.writes
        for value in call.arguments.values()
        if isinstance(value, str)
    }
    scores["another answer"] = max((earned(calls, text, text) for text in texts), default=0.0)
    if any(call.arguments for call in goal.calls):
        scores["perturbed arguments"] = earned([_with_wrong_arguments(call) for call in calls], answer)
    return scores


_CHEAP_POLICIES = ("wrong arguments", "empty answer", "another answer", "question echoed", "numbers listed")


def _why_unproven(scores: Mapping[str, float]) -> str | None:
    if scores["recorded"] != 1.0:
        return f"the recorded calls and answer score {scores['recorded']:.2f}"
    if scores["nothing"] != 0.0:
        return f"doing nothing scores {scores['nothing']:.2f}"
    passed = [name for name in _CHEAP_POLICIES if scores.get(name, 0.0) > CHEAP]
    passed += [name for name in ("perturbed texts", "perturbed arguments") if scores.get(name, 0.0) >= 1.0]
    return f"a cheap policy passes: {', '.join(passed)}" if passed else None


def reward(goal: Goal, calls: Iterable[Call], answer: str | None) -> float:
    """Return what a run would pay for these calls, one per turn, and this answer."""
    turns = [
        Turn(
            text="",
            sampled_ids=(),
            finish=FinishReason.STOP,
            weights_version=0,
            calls=(call.as_call,),
            observations=(Observation(tool=call.tool, server=None, text=call.text),),
        )
        for call in calls
    ]
    return weigh(score(goal, turns, answer, StopReason.ANSWERED, weights=REWARDS), REWARDS)


def _with_texts(call: Call, names: Sequence[str], text: str) -> Call:
    changed = {name: text if name in names else value for name, value in call.arguments.items()}
    return replace(call, arguments=changed) if call.writes else call


def _with_wrong_arguments(call: Call) -> Call:
    return replace(call, arguments={name: _wrong(value) for name, value in call.arguments.items()})


def _wrong(value: Any) -> Any:
    return value + 7 if isinstance(value, int | float) and not isinstance(value, bool) else "x"


def _perturbed(text: str) -> str:
    """Change every digit and reverse every word with a capital: no value remains."""
    digits = str.maketrans("0123456789", "9012345678")
    return re.sub(r"\w*[A-Z#]\w*", lambda found: found[0][::-1].swapcase() + "q", text).translate(digits)
