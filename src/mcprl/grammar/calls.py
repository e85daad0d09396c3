r"""The grammar of a turn: a structural tag (xgrammar) that enforces the tools' schemas in each call.

Mode `calls`: prose and thinking are free. Every call names an available tool, has arguments that fit its schema, and is
closed. Mode `act`: a turn is either one or more calls and nothing else, or an answer, which is text without a call. In
both modes, a turn must close its thinking and its calls before it ends.

Thinking is at the start of a turn or absent. OPEN: the turn begins inside thinking, which ends with `</think>`.
OPTIONAL: the turn may begin with a block `<think>`…`</think>`. NONE: there is no thinking. Inside thinking, no call and
no second `<think>` may begin. Outside thinking, neither of the two tags may appear, not even as prose, because parsers
treat a leading `<think>` as thinking regardless of the prompt.

The grammar may allow less than a schema, but never more. Properties are in the schema's order, and no others are
allowed. Whitespace in JSON is at most one character. Strings do not contain the first two characters of a marker (`</`,
`<t`, `<|`); JSON can write them with `\u003c`. (Excluding whole markers would make compilation twenty times slower.)
Strings contain no `\ud…` escape either, because half a surrogate pair is not a character. In families that write
arguments one by one, a value is raw text if the schema says `"type": "string"` and JSON otherwise, as the parsers
expect. An answer's first token is not just whitespace, and does not end with the start of a marker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

from renderers.base import Tokenizer

from mcprl.bounds import GrammarWork, OverLimitError
from mcprl.chat.parsing import Thinking
from mcprl.chat.rendering import Chat, control_tokens
from mcprl.chat.writing import CallSyntax, FieldSyntax, syntax_of
from mcprl.errors import BadValueError, ToolLimitError, UnheldSchemaError
from mcprl.grammar.patterns import Chars, Either, Joined, Pattern, Repeated, read_pattern
from mcprl.grammar.schema_parts import Unheld
from mcprl.grammar.schemas import rewrite

__all__ = ["make_grammar"]

Format = dict[str, Any]
Schema = Mapping[str, Any]

SPACE = "\\s\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Whitespace as Python defines it, for a character class of a regular expression."""

_STRINGS = ("string", ["string"])
_STRIPPED = "leading and trailing whitespace of this argument would be lost"


@dataclass(frozen=True, slots=True)
class FieldArguments:
    """Builds the structural-tag formats of a call's arguments, for model families that write arguments one by one.

    `pieces` builds the formats of a literal string, `json` that of a JSON value. `text` is the format of raw text.
    """

    fields: FieldSyntax
    pieces: Callable[[str], list[Format]]
    json: Callable[[Schema], Format]
    text: Format

    def write(self, schema: Schema, held: Schema) -> tuple[list[Format], list[Unheld]]:
        """Return the formats of a tool's arguments, and the unenforced keywords. `held` is the rewritten schema."""
        definitions: Mapping[str, Schema] = held.get("$defs", {})
        unheld: list[Unheld] = []
        whole = _target(held, definitions)
        options = [
            self._object(schema, _target(option, definitions), definitions, unheld)
            for option in whole.get("anyOf", [whole])
        ]
        if len(options) == 1:
            return options[0], unheld
        return [{"type": "or", "elements": [{"type": "sequence", "elements": each} for each in options]}], unheld

    def _object(self, schema: Schema, held: Schema, definitions: Schema, unheld: list[Unheld]) -> list[Format]:
        properties: Mapping[str, Schema] = held.get("properties", {})
        required: Sequence[str] = held.get("required", ())
        if not properties and held.get("additionalProperties", False) is not False:
            unheld.append(Unheld("", "additionalProperties", "this call format needs the names of all arguments"))
        written: list[Format] = []
        for name, value in properties.items():
            before = self.pieces(self.fields.before + name + self.fields.between)
            inside = self._value(name, schema.get("properties", {}).get(name, {}), value, definitions, unheld)
            field = [*before, inside, *self.pieces(self.fields.after)]
            optional = {"type": "optional", "content": {"type": "sequence", "elements": field}}
            written += field if name in required else [optional]
        return written

    def _value(self, name: str, schema: Any, held: Schema, definitions: Schema, unheld: list[Unheld]) -> Format:
        if not isinstance(schema, Mapping) or cast("Schema", schema).get("type") not in _STRINGS:
            return self.json({**held, "$defs": definitions} if definitions else held)
        format_, keyword = self._raw(cast("Schema", schema), held)
        if keyword is not None:
            unheld.append(Unheld(f"/properties/{name}", keyword, _STRIPPED))
        return format_

    def _raw(self, schema: Schema, held: Schema) -> tuple[Format, str | None]:
        """Return the format of a string as raw text, and the keyword that is not enforced, if any."""
        if "enum" in held:
            kept = [value for value in held["enum"] if value == value.strip()]
            texts: list[Format] = [{"type": "const_string", "value": value} for value in kept]
            return ({"type": "or", "elements": texts}, None) if texts else (self.text, "enum")
        if held.keys() <= {"type", "format"}:
            return self.text, None
        if "pattern" not in held:
            return self.text, next(iter(schema))
        if schema.keys().isdisjoint(("pattern", "$ref", "allOf", "anyOf", "oneOf")):
            return _counted(schema), None
        unstable = _writes_space(read_pattern(held["pattern"]))
        return {"type": "regex", "pattern": held["pattern"]}, "pattern" if unstable else None


def _target(held: Schema, definitions: Mapping[str, Schema]) -> Schema:
    while "$ref" in held:
        held = definitions[held["$ref"].removeprefix("#/$defs/")]
    return held


def _counted(schema: Schema) -> Format:
    """Return the format of text with a limited length.

    Its first and last characters are not whitespace, because parsers strip whitespace.
    """
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    if most == 0:
        return {"type": "const_string", "value": ""}
    edge = f"[^{SPACE}<]"
    longer = f"{edge}[^<]{{{max(least - 2, 0)},{'' if most is None else int(most) - 2}}}{edge}"
    options = ([edge] if least < 2 else []) + ([longer] if most is None or most > 1 else [])
    return {"type": "regex", "pattern": f"({'|'.join(options)}){'' if least else '?'}"}


def _writes_space(pattern: Pattern) -> bool:
    match pattern:
        case Chars(ranges):
            return any(chr(code).isspace() for low, high in ranges for code in range(low, min(high, 0x3000) + 1))
        case Joined(items) | Either(items):
            return any(_writes_space(item) for item in items)
        case Repeated(item):
            return _writes_space(item)
        case _:
            return False


ToolSpec = Mapping[str, Any]

_THINK, _THINK_END = "<think>", "</think>"
_HALF_CHARACTERS = ("\\ud", "\\uD")
# Whitespace in byte-level and other vocabularies. Vocabularies with byte fallback write `<` as <0x3C>.
_SPACES_IN_VOCABULARIES = "ĠĊĉčċČ▁ \t\n\r"
_BEGINNING_AS_A_BYTE = "<0x3C>"
_NO_ARGUMENTS: ToolSpec = {"type": "object", "properties": {}}


def make_grammar(
    chat: Chat,
    tools: Sequence[ToolSpec],
    mode: Literal["calls", "act"],
    *,
    must_call: bool = False,
    loose_tools: Collection[str] = (),
    stop: Sequence[str] = (),
) -> str:
    """Return the structural tag for turns of `chat` with these tools, as JSON text. It is deterministic.

    With `must_call`, a turn is one or more calls and nothing else, whether `mode` is `calls` or `act`.
    `stop` are the strings that end a turn. Strings in arguments do not contain them, because they would cut off the
    call. In strings with a pattern or a length limit, only `<` is excluded. Raises NoCallSyntaxError if the chat's
    family has no grammar. Raises UnheldSchemaError if a grammar cannot enforce all of a tool's schema, unless the tool
    is in `loose_tools`. For such a tool, the grammar enforces the rest of the schema.
    """
    syntax = syntax_of(chat)
    _check_stops(syntax, stop)
    work = GrammarWork(together=True)
    turns = _Turns(syntax, chat.tokenizer, control_tokens(chat.tokenizer), chat.stop_token_ids[0], tuple(stop), work)
    tags = [turns.call_tag(tool, loose=tool["name"] in loose_tools) for tool in tools]
    if must_call:
        body = _sequence([_GAP, turns.calls(tags)])
    elif mode == "act":
        body = _sequence([_GAP, _or([*([turns.calls(tags)] if tags else []), turns.answer()])])
    else:
        body = turns.prose_and_calls(tags)
    # Keys are not sorted: the grammar requires properties in the schema's order.
    return json.dumps(
        {"type": "structural_tag", "format": _sequence([*turns.thinking(chat.thinking), body])}, separators=(",", ":")
    )


def _check_stops(syntax: CallSyntax, stop: Sequence[str]) -> None:
    call = syntax.before_name + syntax.after_name + "{}" + syntax.closing
    for text in stop:
        if -1 < call.find(text) < len(call) - len(text):
            raise BadValueError(
                f"sampling.stop contains {text!r}, which occurs inside every call, so no call could be completed",
                fix="remove this string, or replace it with the one that ends a call",
            )


def _const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def _sequence(elements: Sequence[Format]) -> Format:
    flat = [inner for each in elements for inner in (each["elements"] if each["type"] == "sequence" else [each])]
    return flat[0] if len(flat) == 1 else {"type": "sequence", "elements": flat}


def _or(elements: Sequence[Format]) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def _optional(elements: Sequence[Format]) -> Format:
    return {"type": "optional", "content": _sequence(elements)}


# Families write up to two newlines after thinking.
_GAP: Format = {"type": "regex", "pattern": "\n{0,2}"}


@dataclass(frozen=True, slots=True)
class _Turns:
    """Builds the structural-tag formats of a turn's parts. `control` maps texts of control tokens to ids."""

    syntax: CallSyntax
    tokenizer: Tokenizer
    control: Mapping[str, int]
    stop_token_id: int
    stop: tuple[str, ...]
    work: GrammarWork

    def thinking(self, thinking: Thinking) -> list[Format]:
        """Return the structural-tag formats of the thinking at the start of a turn."""
        if thinking is Thinking.NONE:
            return []
        inside = [self._free_text(), *self._pieces(_THINK_END)]
        if thinking is Thinking.OPEN:
            return inside
        return [_optional([*self._pieces(_THINK), *inside])]

    def prose_and_calls(self, tags: Sequence[Format]) -> Format:
        """Return the format of free text that contains calls."""
        if self.syntax.opening is None:  # a turn is either a call or prose
            return _optional([_or([*tags, self.answer()])])
        if not tags:
            return self._free_text()
        return _sequence([self._free_text(), {"type": "star", "content": _sequence([_or(tags), self._free_text()])}])

    def calls(self, tags: Sequence[Format]) -> Format:
        """Return the format of one or more calls and nothing else."""
        return {
            "type": "tags_with_separator",
            "tags": list(tags),
            "separator": self.syntax.separator or "",
            "at_least_one": True,
            "stop_after_first": self.syntax.separator is None,
        }

    def answer(self) -> Format:
        """Return the format of text that is not empty and contains no call."""
        if self.syntax.opening is None:
            return {"type": "regex", "pattern": f"[^{SPACE}{{<][\\s\\S]*"}
        # If the text had to begin with a single character, the first mask would take 30 ms, because most tokens are
        # longer.
        start: Format = {
            "type": "exclude_token",
            "exclude_tokens": _no_starts(self.tokenizer, tuple(self._kept_out_of_text())),
        }
        return _sequence([self._told_apart(start, "answer"), self._free_text()])

    def call_tag(self, tool: ToolSpec, *, loose: bool) -> Format:
        """Return the tag of one tool's calls."""
        spec = tool
        name, schema = str(spec["name"]), spec.get("parameters") or _NO_ARGUMENTS
        self._check_names(name, schema)
        is_json = self.syntax.fields is None
        try:
            held, found = rewrite(schema, excludes=self._excluded_from_json(), escapes=is_json, work=self.work)
        except OverLimitError as error:
            raise ToolLimitError(
                f"tool {name!r} has a schema that {error}",
                fix="exclude the tool with servers.settings.NAME.deny, offer fewer tools in a task, or set "
                "sampling.constrain to off",
            ) from error
        arguments, unheld = [self._json(held)], list(found)
        if self.syntax.fields is not None:
            writer = FieldArguments(self.syntax.fields, self._pieces, self._json, self._raw_text())
            arguments, unheld_fields = writer.write(schema, held)
            unheld += unheld_fields
        if unheld and not loose:
            raise _unheld_schema(name, unheld)
        if self.syntax.before_name.endswith('"') and is_json:
            name = json.dumps(name, ensure_ascii=False)[1:-1]
        before, after = (self._pieces(text) for text in (self.syntax.before_name, self.syntax.after_name))
        pieces = [*before, _const(name), *after, *arguments, *self._pieces(self.syntax.closing)]
        return {"type": "tag", "begin": "", "content": _sequence(_joined(pieces)), "end": ""}

    def _check_names(self, tool: str, schema: Mapping[str, Any]) -> None:
        arguments: Iterable[str] = schema.get("properties", {}) if self.syntax.fields is not None else ()
        for name in (tool, *arguments):
            if self.syntax.cannot_write(name):
                raise UnheldSchemaError(
                    f"tool {tool!r}: the name {name!r} cannot be written in this model family's call format",
                    fix="rename the tool on the server, exclude it with servers.settings.NAME.deny, or set "
                    "sampling.constrain to off",
                )

    def _pieces(self, text: str) -> list[Format]:
        """Return the formats of a literal string. Markers that parsers match as tokens become tokens."""
        thinks = self.syntax.tokens and _THINK in self.control and _THINK_END in self.control
        tokens = [*self.syntax.tokens, *((_THINK, _THINK_END) if thinks else ())]
        parts = re.split("(" + "|".join(map(re.escape, tokens)) + ")", text) if tokens else [text]
        return [
            self._told_apart({"type": "token", "token": self.control[part]}, str(self.control[part]))
            if part in tokens
            else _const(part)
            for part in parts
            if part
        ]

    def _told_apart(self, tokens: Format, role: str) -> Format:
        """Return `tokens`, a format that refers to tokens, changed so that it differs from all other formats.

        This works around a bug in the compiler of xgrammar 0.2.8. It caches results per rule and reuses them for rules
        that differ only in tokens, even in other grammars, so it allows the wrong tokens. The workaround gives each
        rule a branch with a different text. The branch is never taken, because it begins with a stop token, which is
        only admissible at the end of a turn.
        """
        never = [{"type": "token", "token": self.stop_token_id}, _const(role)]
        return _or([tokens, _sequence(never)])

    def _free_text(self) -> Format:
        return {"type": "any_text", "excludes": self._kept_out_of_text()}

    def _kept_out_of_text(self) -> list[str]:
        openings = self.syntax.tokens or ((self.syntax.opening,) if self.syntax.opening is not None else ())
        return [_THINK, _THINK_END, *openings]

    def _raw_text(self) -> Format:
        markers = [_THINK, _THINK_END, *self.syntax.tags, *self.stop]
        return {"type": "any_text", "excludes": list(dict.fromkeys(markers))}

    def _json(self, schema: Mapping[str, Any]) -> Format:
        excludes = [*self._excluded_from_json(), *_HALF_CHARACTERS]
        return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1, "excludes": excludes}

    def _excluded_from_json(self) -> list[str]:
        """Return the first two characters of each marker, and the stop texts that contain none of these."""
        # Of the tokenizer's own tokens, only those like `<|…`. Excluding a plain `<s>` as well would cost too much.
        own = [text for text in self.control if text[0] == "<" and not text[1].isalnum()]
        short = sorted({marker[:2] for marker in (_THINK, _THINK_END, *self.syntax.tags, *own)})
        return short + [text for text in self.stop if not any(marker in text for marker in short)]


@lru_cache(maxsize=8)
def _no_starts(tokenizer: Tokenizer, markers: tuple[str, ...]) -> tuple[int, ...]:
    """Return the tokens that are only whitespace, contain a marker, or end with the beginning of one."""
    beginnings = {marker[:length] for marker in markers for length in range(1, len(marker))}
    vocabulary: Mapping[str, int] = cast("Any", tokenizer).get_vocab()
    return tuple(
        sorted(
            token_id
            for text, token_id in vocabulary.items()
            if not text.strip(_SPACES_IN_VOCABULARIES)
            or text.endswith((*beginnings, _BEGINNING_AS_A_BYTE))
            or any(marker in text for marker in markers)
        )
    )


def _joined(pieces: Sequence[Format]) -> list[Format]:
    """Merge adjacent literal strings."""
    joined: list[Format] = []
    for piece in pieces:
        if joined and piece["type"] == "const_string" == joined[-1]["type"]:
            joined[-1] = _const(joined[-1]["value"] + piece["value"])
        else:
            joined.append(piece)
    return joined


def _unheld_schema(tool: str, unheld: Sequence[Unheld]) -> UnheldSchemaError:
    found = "; ".join(f"{each.keyword} at {each.path or 'the top level'}: {each.why}" for each in unheld)
    return UnheldSchemaError(
        f"tool {tool!r} has a schema that a grammar cannot express: {found}",
        fix=f"add {tool} to sampling.loose_tools (its arguments are still checked when it is called), or set "
        "sampling.constrain to off",
    )
