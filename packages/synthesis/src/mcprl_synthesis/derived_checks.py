"""Derives a task's goal from a recorded conversation, and proves it with the reward code of a run.

There are three kinds of checks: call arguments given by the question, values in the answer that tools returned,
and the content and target of writes. A check is kept only if `prove` accepts it: the recorded calls and answer score 1,
an empty episode scores 0, and trivial policies score at most `CHEAP`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from mcprl.config import RewardsConfig
from mcprl.episodes.rewards import meets, numbers_in, score, weigh
from mcprl.goals import Contains, ExpectedCall, ExpectedText, ExpectedWrite, Goal, HasNumber, MeetsSome
from mcprl.records import FinishReason, Message, Observation, StopReason, ToolCall, Turn

REWARDS: Final = RewardsConfig(answer=2.0, state=1.0, calls=0.25, arguments=0.25, efficiency=0.0)
"""The rewards of an imported project. Correct calls alone earn less than half. Efficiency has no weight, because
recorded calls do not show how few are needed.
"""
CHEAP: Final = 0.5
"""The highest reward that a trivial policy may get on a proven task."""

_MAX_FACTS = 6
_SHARE = 0.6
_MAX_CALLS = 12
_MAX_VALUE = 120
_NAMED_LINES = 3
_DIGITS = 3
_SHORT = 60
_STEM = 5
_YEARS = range(1990, 2036)
_DASHES = re.compile(r"[‐-―−]")
_WORD = re.compile(r"[A-Za-z][A-Za-z]+")
_NAME = re.compile(r"[#@]?[\w^&][\w.&^=-]*[\w]|\w")
_SENTENCE = re.compile(r"(?:\A|[.!?:]\s+|\n)\W*")
_LABELLED = re.compile(
    r"^[ \t*\"'-]*(?P<label>[A-Za-z][\w /-]{0,40})[\"'*]{0,3}:[\"'* ]{1,4}(?P<value>\S.*?)[\"',* ]*$", re.M
)
_SYMBOL = re.compile(r"(?<![\w.$])[A-Z][A-Z0-9]{1,5}(?![\w])|#[a-z][\w-]+")
_URL = re.compile(r"https?://\S+")
_MESSAGING = re.compile(
    r"(?i)\b(?:post|send|share|alert|notify|brief|publish|reply|dm|distribute|push|tell|announce|let\b.{1,40}\bknow)\b"
)
_ANNOUNCES = re.compile(
    r"(?i)\A\W*(?:(?:now|next|first|to proceed|let me|let's|please|(?:could|can|would) you)\b"
    r"|i(?: will|'ll| need)\b|const |await )|\bi will (?:now |then )?(?:proceed|start|begin)\b|\bnext, i will\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A recorded call and its result. `writes` means that the tool changes something.

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
    """A recorded conversation. `ended_on_tool` is True if its last message is a tool result; `answer` may be None.

    `defaults` has the default of each argument, by tool and argument.
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
        """Return the calls that worked, without duplicates."""
        seen: list[Call] = []
        for call in self.calls:
            same = any(call.tool == other.tool and call.arguments == other.arguments for other in seen)
            if not call.failed and (call.writes or not same):
                seen.append(call)
        return tuple(seen)


class Corpus:
    """A set of conversations. Tells which argument values a name refers to, and whether few answers use a word."""

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
        """Return the values that a name refers to: {"tsla"} for "Tesla". Empty if there are more than two."""
        values = self._values.get(name.casefold(), set())
        return values if len(values) <= 2 else set()

    def is_rare(self, word: str) -> bool:
        """Return True for a #name, and for a word that occurs in few answers, unlike CEO or ETF."""
        return word.startswith("#") or self._uses[word] <= max(3, len(self.conversations) // 30)


def _names_beside(value: str, text: str) -> set[str]:
    """Return the capitalized words next to a value in the first lines: tesla and inc in "**Tesla, Inc. (TSLA)**"."""
    lines = [line for line in text.split("\n") if line.strip()][:_NAMED_LINES]
    beside = [line for line in lines if meets(Contains(text=value), line)]
    words = (word for line in beside for word in _WORD.findall(line) if word[0].isupper() and len(word) > 2)
    return {word.casefold() for word in words} - {value.casefold()}


# ---- arguments that follow from the question ----


def _entities(question: str) -> set[str]:
    """Return the names in a question: #channels, @people, and capitalized words that do not begin a sentence."""
    starts = {found.end() for found in _SENTENCE.finditer(question)}
    found: set[str] = set()
    for match in _NAME.finditer(question.replace("'s ", "   ").replace("’s ", "   ")):
        word = match[0]
        is_name = any(letter.isupper() for letter in word[1:]) or (word[0].isupper() and match.start() not in starts)
        if word[0] in "#@" or is_name or any(letter.isdigit() for letter in word):
            found.add(word.lstrip("#@").casefold())
    return found


def determined(conversation: Conversation, call: Call, corpus: Corpus) -> dict[str, Any]:
    """Return those arguments of a call whose values can be derived from the question."""
    question = conversation.question
    names, numbers = _entities(question), numbers_in(question)
    named = {value for name in names for value in corpus.values_of(name)}
    fixed: dict[str, Any] = {}
    for name, value in call.arguments.items():
        if isinstance(value, bool) or conversation.defaults.get((call.tool, name)) == value:
            continue
        if isinstance(value, int | float):
            if Decimal(str(value)) in numbers:
                fixed[name] = value
        elif isinstance(value, str) and _NAME.fullmatch(value.strip()):
            plain = _DASHES.sub("-", value.strip()).lstrip("#@").casefold()
            if plain in names or plain in named:
                fixed[name] = value
    return fixed


# ---- values that tools returned ----


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    check: ExpectedText
    rank: tuple[float, ...]
    source: int  # index of the call that returned it, among the calls that worked


def _facts(text: str, conversation: Conversation, corpus: Corpus) -> list[_Fact]:
    """Return the values in a text that a tool returned and that are not in the question, most specific first.

    If several of them have a label that shares words with the question, only those are returned.
    """
    question = conversation.question
    asked = {word.casefold()[:_STEM] for word in _WORD.findall(question)}
    found = [
        *_number_facts(_URL.sub(" ", text), question, asked, conversation),
        *_word_facts(text, question, asked, conversation, corpus),
    ]
    unique: dict[str, _Fact] = {}
    for fact in sorted(found, key=lambda fact: fact.rank, reverse=True):
        unique.setdefault(repr(fact.check), fact)
    facts = list(unique.values())
    on_topic = [fact for fact in facts if fact.rank[0] >= 1]
    return on_topic if len(on_topic) > 1 else facts


def _number_facts(text: str, question: str, asked: set[str], conversation: Conversation) -> Iterator[_Fact]:
    given = {abs(number) for number in numbers_in(question)}
    stated = [number for number in dict.fromkeys(numbers_in(text)) if abs(number) not in given]
    for source, call in enumerate(conversation.worked):
        for line, numbers in _numbers_by_line(call.text):
            overlap = -1
            for place, number in enumerate(stated):
                value = next((returned for returned in numbers if _rounds_to(returned, number)), None)
                if value is None or number == 0 or int(number) in _YEARS:
                    continue
                overlap = _overlap(line, asked) if overlap < 0 else overlap
                # Numbers with few digits are often equal by chance, unless a short line labels them.
                digits = len(number.normalize().as_tuple().digits)
                if digits >= _DIGITS or (overlap and len(line) <= _SHORT):
                    yield _Fact(check=_near(value, number), rank=(overlap + digits / 10, -place), source=source)


def _overlap(label: str, asked: set[str]) -> int:
    """Return how many words of a label are in the question, at most 3."""
    return min(3, len(asked & {word.casefold()[:_STEM] for word in _WORD.findall(label)}))


@lru_cache(maxsize=4096)
def _numbers_by_line(text: str) -> tuple[tuple[str, tuple[Decimal, ...]], ...]:
    """Return the lines of a result that have numbers, with their numbers. 0.0123 also counts as 1.23 percent."""
    lines = ((line, numbers_in(line)) for line in _URL.sub(" ", text).split("\n"))
    return tuple((line, (*ns, *(n * 100 for n in ns if 0 < abs(n) < 1))) for line, ns in lines if ns)


def _rounds_to(returned: Decimal, stated: Decimal) -> bool:
    """Return True if a stated number is the returned one, exact or rounded. Ignores signs: a fall of 1.5 is -1.5."""
    half = Decimal(5).scaleb(int(stated.as_tuple().exponent) - 1)
    exact = stated == stated.to_integral_value() and abs(stated) < 1000
    return abs(abs(stated) - abs(returned)) <= (0 if exact else half)


def _near(value: Decimal, stated: Decimal) -> ExpectedText:
    half = float(Decimal(5).scaleb(int(stated.as_tuple().exponent) - 1))
    exact = value == stated and value == value.to_integral_value() and abs(value) < 1000
    tolerance = 0.0 if exact else max(half, abs(float(value)) * 5e-4)
    number = HasNumber(value=float(value), tolerance=float(f"{tolerance:.2g}"), at_most=None)
    # "fell by 1.5%" and "−1.5%" are both right.
    return number if value >= 0 else MeetsSome(of=(number, replace(number, value=-number.value)), at_least=1)


def _word_facts(
    text: str, question: str, asked: set[str], conversation: Conversation, corpus: Corpus
) -> Iterator[_Fact]:
    folded = text.casefold()
    symbols = [("", symbol) for symbol in _SYMBOL.findall(text) if len(symbol) > 2 and corpus.is_rare(symbol)]
    chosen: set[str] = set()  # words of the calls themselves, which results repeat
    for source, call in enumerate(conversation.worked):
        chosen |= {value.casefold() for value in call.arguments.values() if isinstance(value, str)}
        if call.writes:
            continue
        labels = [(found["label"], found["value"].strip()) for found in _LABELLED.finditer(call.text)]
        for label, value in dict.fromkeys([*labels, *symbols]):
            if not 3 <= len(value) <= _MAX_VALUE or value.casefold() not in folded or value.casefold() in chosen:
                continue
            word, overlap = Contains(text=value), _overlap(label, asked)
            is_label = not label and re.search(rf"\b{re.escape(value)}:\s*[A-Za-z]", call.text) is not None
            if (
                is_label
                or (value.islower() and value[0] != "#" and not overlap)
                or numbers_in(value)
                or value not in call.text
            ):
                continue
            if meets(word, text) and meets(word, call.text) and not meets(word, question):
                yield _Fact(check=word, rank=(overlap + 0.4, -folded.find(value.casefold())), source=source)


def _some_of(facts: Sequence[_Fact], text: str, results: str, *, share: float) -> ExpectedText:
    """Return a check that requires this share of the facts. Its number checks fail a text with too many numbers."""
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


# ---- the goal ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """The result for a conversation. `failed` says why it cannot be used; `lacks` lists what could not be checked.

    `calls` and the answer solve the task: the calls that worked, without writes that the question does not ask for.
    `goal` is None if nothing is proven. `scores` are the rewards of the policies that `prove` tried.
    """

    failed: str | None
    lacks: tuple[str, ...]
    calls: tuple[Call, ...]
    goal: Goal | None = None
    scores: Mapping[str, float] | None = None

    @property
    def kinds(self) -> dict[str, int]:
        """Return the number of proven checks of each kind."""
        if self.goal is None:
            return {}
        arguments = sum(len(call.arguments) for call in self.goal.calls)
        found = {"arguments": arguments, "answer": int(self.goal.answer is not None), "state": len(self.goal.writes)}
        return {kind: number for kind, number in found.items() if number}


def derive(conversation: Conversation, corpus: Corpus) -> Derived:
    """Derive the goal of a conversation from its calls and answer, and prove it."""
    asked = [call for call in conversation.worked if call.writes and _is_asked(conversation, call, corpus)]
    facts = _facts(conversation.answer or "", conversation, corpus)
    used = {fact.source for fact in facts}
    calls = tuple(
        call for place, call in enumerate(conversation.worked) if not call.writes or call in asked or place in used
    )
    failed = _why_failed(conversation, asked, facts)
    if failed is not None:
        return Derived(failed=failed, lacks=(), calls=calls)
    lacks: list[str] = []
    for share in (_SHARE, 1.0):
        goal, lacks = _goal(conversation, corpus, calls, asked, facts, share)
        if goal is None:
            return Derived(failed=None, lacks=tuple(lacks), calls=calls)
        scores = prove(goal, conversation, calls, corpus)
        wrong = why_unproven(scores)
        if wrong is None:
            return Derived(failed=None, lacks=tuple(lacks), calls=calls, goal=goal, scores=scores)
        lacks = [*lacks, wrong]
    return Derived(failed=None, lacks=tuple(lacks), calls=calls)


def _is_asked(conversation: Conversation, call: Call, corpus: Corpus) -> bool:
    """Return True if the question asks for a write: it names the tool, or has a messaging verb and a target."""
    named = _named(conversation, call)
    asks = _MESSAGING.search(conversation.question) is not None
    return named > 1 or (asks and bool(named or determined(conversation, call, corpus)))


def _named(conversation: Conversation, call: Call) -> int:
    """Return how many words of a tool's name are in the question."""
    words = {word.casefold() for word in _WORD.findall(conversation.question)}
    return len(words & {word.casefold() for word in _WORD.findall(call.tool)})


def _why_failed(conversation: Conversation, asked: Sequence[Call], facts: Sequence[_Fact]) -> str | None:
    calls = conversation.calls
    if conversation.ended_on_tool:
        return "it ends with a tool result"
    if conversation.answer is None and not asked:
        return "it ends without an answer"
    if calls and 2 * sum(call.failed for call in calls) > len(calls):
        return "most of its calls failed"
    if conversation.answer is not None and not facts and not asked:
        if calls and calls[-1].failed:
            return "its last call failed, and the answer contains nothing that a tool returned"
        if _ANNOUNCES.search(conversation.answer):
            return "its answer announces further work or asks a question"
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
        lacks.append("the answer contains no value that a tool returned, except values from the question")
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
            lacks.append(f"the text that {call.tool} wrote contains no value that a tool returned")
    expected: list[ExpectedCall] = []
    worked = conversation.worked
    for call in calls:
        arguments = determined(conversation, call, corpus)
        # There may be other ways to compute a value than the recorded calls, unless the question names the tool.
        needed = _named(conversation, call) > 0 if call.writes else worked.index(call) in sources
        want = ExpectedCall(tool=call.tool, arguments=arguments)
        if (arguments or needed) and want not in expected and len(expected) < _MAX_CALLS:
            expected.append(want)
    if not any(call.arguments for call in expected):
        lacks.append("no argument can be derived from the question")
    if answer is None and not writes:
        return None, lacks
    goal = Goal(answer=answer, calls=tuple(expected), in_any_order=True, writes=tuple(writes))
    return goal, lacks


# ---- the proof ----


def prove(goal: Goal, conversation: Conversation, calls: Sequence[Call], corpus: Corpus) -> dict[str, float]:
    """Return the reward of each test policy: the recorded one, an empty one, and perturbed and trivial ones."""
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
    }
    if len(set(numbers_in(listed))) > len(set(numbers_in(answer or ""))):
        scores["numbers listed"] = earned(calls, listed, listed)
    if goal.answer is not None:
        scores["empty answer"] = earned(calls, "")
    texts = {c.answer for c in others if c.answer}
    texts |= {str(call.arguments.get(name, "")) for c in others for call in c.worked for name in written if call.writes}
    wrong = earned(calls, "x", "x")
    checks = (*(() if goal.answer is None else (goal.answer,)), *goal.texts_of_state)
    rewards = [earned(calls, text, text) if any(meets(check, text) for check in checks) else wrong for text in texts]
    # Other tasks may ask for the same values, so one other answer in twenty may pass.
    scores["another answer"] = sorted(rewards)[math.ceil(0.95 * len(rewards)) - 1] if rewards else 0.0
    if any(call.arguments for call in goal.calls):
        scores["perturbed arguments"] = earned([_with_wrong_arguments(call) for call in calls], answer)
    return scores


_CHEAP_POLICIES = ("wrong arguments", "empty answer", "another answer", "question echoed", "numbers listed")


def why_unproven(scores: Mapping[str, float]) -> str | None:
    """Return why the scores of `prove` do not prove the goal, or None if they do."""
    if scores["recorded"] != 1.0:
        return f"the recorded calls and answer score {scores['recorded']:.2f}"
    if scores["nothing"] != 0.0:
        return f"doing nothing scores {scores['nothing']:.2f}"
    passed = [name for name in _CHEAP_POLICIES if scores.get(name, 0.0) > CHEAP]
    passed += [name for name in ("perturbed texts", "perturbed arguments") if scores.get(name, 0.0) >= 1.0]
    return f"a trivial policy would pass: {', '.join(passed)}" if passed else None


def reward(goal: Goal, calls: Iterable[Call], answer: str | None) -> float:
    """Return the reward that a run would give for these calls, one per turn, and this answer."""
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
    """Change every digit and reverse every word, so that no value remains."""
    digits = str.maketrans("0123456789", "9012345678")
    return re.sub(r"\w+", lambda found: found[0][::-1] + "q", text).translate(digits)
