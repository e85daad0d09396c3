"""Why something that the policy wrote is no usable call: the closed list, in the words that the policy reads.

`ToolCall.problem` is always one of these sentences with its places filled in, so that what goes wrong can be counted
by kind.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

__all__ = ["Problem"]


class Problem(StrEnum):
    """A kind of problem. Its value is the sentence, with places in braces for what differs from call to call.

    >>> said = Problem.UNCLOSED.say(closing="</tool_call>")
    >>> said
    'the call has no closing </tool_call>'
    >>> Problem.of(said).name
    'UNCLOSED'
    """

    UNCLOSED = "the call has no closing {closing}"
    NOT_JSON = "the call is not valid JSON: {why}"
    TEXT_AFTER_JSON = "after the JSON of the call comes {found}, where only {allowed} may follow"
    NOT_AN_OBJECT = 'the call must be a JSON object with "name" and "{arguments}"'
    NO_NAME = "the call names no tool{where}"
    MISPLACED_ARGUMENTS = 'the arguments must stand in "{arguments}", and the call has {found}'
    ARGUMENTS_NOT_AN_OBJECT = "the arguments must be a JSON object{where}"
    TOO_DEEP = "the call is nested too deeply: {limit} levels at most"
    NUMBER_TOO_LONG = "the call holds a number of too many digits"
    NOT_FINITE = "the call holds a number that is infinite or none, which JSON does not have"
    HALF_CHARACTER = "the call holds half of a surrogate pair, which is no character"
    TOO_MANY = "a turn may hold {limit} calls at most: what comes after them is not read"
    # Of the families whose calls `renderers` reads:
    MALFORMED = "the call is not written as this model writes calls: see the instructions above the tools"
    UNREADABLE = "the turn cannot be read: it is nested too deeply, or holds a number of too many digits"

    def say(self, **details: object) -> str:
        """The sentence about one call."""
        return self.value.format(**details)

    @classmethod
    def of(cls, sentence: str) -> Self:
        """The kind of a sentence that `say` made."""
        return next(kind for kind in cls if sentence.startswith(kind.partition("{")[0]))
