"""Numbers and strings as a grammar holds them: all keywords that hold for one value, as one schema of xgrammar.

Each function is given the parts that hold for a value and returns the schema for it, or None where nothing is admitted.

What was measured of xgrammar 0.2.8. Numbers with bounds are written without exponents and with at most six decimals;
bounds finer than that, or too large for a float to tell neighbours apart, are held wrongly, so bounds are moved inward
to where they are held. `multipleOf` holds for whole numbers up to 1024 without bounds. Lengths are dropped beside a
pattern, a format or `excludes`, so a length becomes a pattern. The grammars of some formats write invalid JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from mcprl.chat.schema_parts import Findings, Part
from mcprl.chat.string_patterns import (
    ANY_TEXT,
    MAX_COUNT,
    Pattern,
    is_too_large,
    num_chars,
    read_pattern,
    with_length,
    write_pattern,
)

__all__ = ["number_schema", "string_schema"]

_MAX_INTEGER = 2**63 - 1
_MAX_NUMBER = 2**53
_MAX_FINE_NUMBER = 10**9  # beyond it, a float no longer tells numbers with six decimals apart
_FINEST = Decimal("0.000001")
_MAX_DIVISOR = 1024
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")

# Formats whose grammar can neither write a marker nor break the JSON. `format` refuses nothing, so others are dropped.
_SAFE_FORMATS = frozenset(
    ("date", "time", "date-time", "duration", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uuid")
)


def number_schema(parts: Sequence[Part], findings: Findings, *, whole: bool) -> dict[str, Any] | None:
    """A number (`whole`: an integer) between its bounds and a multiple of its divisors."""
    divisors = {Decimal(str(part.get("multipleOf"))) for part in parts if "multipleOf" in part}
    whole_divisors = {int(divisor) for divisor in divisors if divisor == int(divisor)}
    for part in parts:
        if "multipleOf" in part and int(part.get("multipleOf")) != part.get("multipleOf"):
            findings.add(part, "multipleOf", "a grammar cannot divide by a fraction")
    whole = whole or bool(whole_divisors)
    bounds = _integer_bounds(parts, findings) if whole else _number_bounds(parts, findings)
    if bounds is None:
        return None
    divisor = math.lcm(*whole_divisors)
    if divisor > 1 and bounds:
        return _multiples(parts, findings, divisor, bounds)
    if divisor > _MAX_DIVISOR:
        _name(parts, findings, "multipleOf", f"a grammar cannot divide by more than {_MAX_DIVISOR}")
    if 1 < divisor <= _MAX_DIVISOR:
        return {"type": "integer", "multipleOf": divisor, **bounds}
    # Without bounds a number may have an exponent that no float holds, or digits without end.
    most = _MAX_INTEGER if whole else _MAX_NUMBER
    return {"type": "integer" if whole else "number", "minimum": -most, "maximum": most, **bounds}


def _name(parts: Sequence[Part], findings: Findings, keyword: str, why: str) -> None:
    for part in parts:
        if keyword in part:
            findings.add(part, keyword, why)


def _multiples(
    parts: Sequence[Part], findings: Findings, divisor: int, bounds: dict[str, Any]
) -> dict[str, Any] | None:
    """Between bounds, multiples are listed one by one."""
    if len(bounds) == 2:
        low, high = -(-bounds["minimum"] // divisor), bounds["maximum"] // divisor
        if low > high:
            return findings.add_dead_end(parts, ("multipleOf",), "no multiple lies between its bounds")
        if high - low < _MAX_DIVISOR:
            return {"enum": [divisor * factor for factor in range(low, high + 1)]}
    _name(parts, findings, "multipleOf", "a grammar cannot divide and hold these bounds at once")
    return {"type": "integer", **bounds}


def _bounds_of(parts: Sequence[Part], keyword: str) -> list[Decimal]:
    return [Decimal(str(part.get(keyword))) for part in parts if keyword in part]


def _integer_bounds(parts: Sequence[Part], findings: Findings) -> dict[str, Any] | None:
    lows = [math.ceil(bound) for bound in _bounds_of(parts, "minimum")]
    lows += [math.floor(bound) + 1 for bound in _bounds_of(parts, "exclusiveMinimum")]
    highs = [math.floor(bound) for bound in _bounds_of(parts, "maximum")]
    highs += [math.ceil(bound) - 1 for bound in _bounds_of(parts, "exclusiveMaximum")]
    return _held(parts, findings, lows, highs, _MAX_INTEGER)


def _number_bounds(parts: Sequence[Part], findings: Findings) -> dict[str, Any] | None:
    lows = [_inward(bound, ROUND_CEILING, False) for bound in _bounds_of(parts, "minimum")]
    lows += [_inward(bound, ROUND_CEILING, True) for bound in _bounds_of(parts, "exclusiveMinimum")]
    highs = [_inward(bound, ROUND_FLOOR, False) for bound in _bounds_of(parts, "maximum")]
    highs += [_inward(bound, ROUND_FLOOR, True) for bound in _bounds_of(parts, "exclusiveMaximum")]
    return _held(parts, findings, lows, highs, _MAX_NUMBER)


def _inward(bound: Decimal, rounding: str, exclusive: bool) -> int | float:
    """The bound, or the next number inward that a grammar can hold as one that is itself allowed."""
    step = _FINEST if abs(bound) < _MAX_FINE_NUMBER else Decimal(1)
    steps = (bound / step).to_integral_value(rounding)
    if exclusive and steps * step == bound:
        steps += 1 if rounding == ROUND_CEILING else -1
    inward = steps * step
    return int(inward) if inward == int(inward) else float(inward)


def _held(
    parts: Sequence[Part], findings: Findings, lows: Sequence[float], highs: Sequence[float], most: int
) -> dict[str, Any] | None:
    """The tightest bounds, moved inward to what the grammar can count to."""
    bounds: dict[str, Any] = {}
    if lows:
        bounds["minimum"] = max(*lows, -most)
    if highs:
        bounds["maximum"] = min(*highs, most)
    low, high = bounds.get("minimum", -most), bounds.get("maximum", most)
    if low > most or high < -most:
        for keyword in _BOUNDS[:2] if low > most else _BOUNDS[2:]:
            _name(parts, findings, keyword, f"a grammar cannot count to it (at most {most})")
        return {}
    if low > high:
        asked = [_bounds_of(parts, keyword) for keyword in _BOUNDS]
        if max(asked[0] + asked[1]) < min(asked[2] + asked[3]) and most == _MAX_NUMBER:
            for keyword in _BOUNDS:
                _name(parts, findings, keyword, "a grammar holds six decimals at most, and none lies between")
            return {}
        return findings.add_dead_end(parts, _BOUNDS, "no number lies between its bounds")
    return bounds


def string_schema(parts: Sequence[Part], findings: Findings, *, escapes: bool) -> dict[str, Any] | None:
    """A string that matches its patterns and is as long as it must be."""
    least = max((int(part.get("minLength")) for part in parts if "minLength" in part), default=0)
    most = min((int(part.get("maxLength")) for part in parts if "maxLength" in part), default=None)
    if most is not None and least > most:
        return findings.add_dead_end(parts, ("minLength", "maxLength"), "no string has such a length")
    tree = _tree(parts, findings)
    counted = with_length(tree, least, most)
    if counted is None or is_too_large(counted):
        why = f"a grammar counts {MAX_COUNT} characters at most" if counted else "a grammar cannot count this pattern"
        for keyword in ("minLength", "maxLength"):
            _name(parts, findings, keyword, why)
        counted = tree
    if counted == ANY_TEXT:
        formats = {str(part.get("format")) for part in parts if "format" in part} & _SAFE_FORMATS
        return {"type": "string"} | ({"format": formats.pop()} if len(formats) == 1 else {})
    findings.work.count_chars(num_chars(counted))
    written = write_pattern(counted, escapes=escapes)
    if written is None:
        if write_pattern(counted, escapes=True) is not None:
            _name(parts, findings, "pattern", "every string that matches holds a character that cannot be written")
            return {"type": "string"}
        return findings.add_dead_end(parts, ("pattern",), "no string matches the pattern and has the length")
    return {"type": "string", "pattern": written}


def _tree(parts: Sequence[Part], findings: Findings) -> Pattern:
    """The one pattern that the parts ask for. A second one is named: a grammar cannot hold two at once."""
    patterns: dict[str, Part] = {}
    for part in parts:
        if "pattern" in part:
            patterns.setdefault(part.get("pattern"), part)
    tree: Pattern = ANY_TEXT
    for pattern, part in patterns.items():
        try:
            another = read_pattern(pattern)
        except ValueError as error:
            findings.add(part, "pattern", f"a grammar cannot hold {error}")
            continue
        if is_too_large(another):
            findings.add(part, "pattern", f"a grammar counts {MAX_COUNT} characters at most")
            continue
        if tree != ANY_TEXT and another != ANY_TEXT:
            findings.add(part, "pattern", "a grammar cannot hold two patterns at once")
        tree = another if tree == ANY_TEXT else tree
    return tree
