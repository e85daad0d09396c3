"""Schemas with one keyword each, and calls that show whether a grammar enforces it.

A value in a list means a call with it as the only argument; a text is the arguments as written.
"""

from __future__ import annotations

import json

INTEGER, STRING, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
A, B = {"properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": STRING}, "required": ["b"]}
KIND_A = {"type": "object", "properties": {"kind": {"const": "a"}, "x": INTEGER}, "required": ["kind"]}
KIND_B = {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]}
NODE = {"type": "object", "properties": {"value": INTEGER, "next": {"$ref": "#/$defs/node"}}}
# No value fits n, and m may hold one.
BARREN = {
    "n": {"required": ["x"], "properties": {"m": {"$ref": "#/$defs/m"}, "x": False}},
    "m": {"properties": {"n": {"$ref": "#/$defs/n"}}},
}
POINTERS = {"a/b": INTEGER, "c~d": STRING, "e f": NULL}


def tool(schema, **definitions):
    """The schema of a tool with one argument."""
    wrapped = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    return {**wrapped, "$defs": definitions} if definitions else wrapped


def written(value) -> str:
    return value if isinstance(value, str) else json.dumps({"v": value[0]}, ensure_ascii=False)


# A keyword, a schema, calls that the grammar admits, calls that both schema and grammar reject.
HELD = [
    ("type", tool(INTEGER), [[1], [-7], [2**63 - 1]], [["1"], [1.5], [None]]),
    ("types", tool({"type": ["string", "null"]}), [["x"], [None]], [[1], [[]]]),
    ("no type", tool({}), [[1], ["x"], [[{}]], [None]], []),
    ("implied type", tool({"minimum": 3}), [[3]], [[2]]),
    ("enum", tool({"enum": ["a", 'q"', "é", 1, 0.1, None, [1]]}), [["a"], ['q"'], ["é"], [0.1], [None]], [["b"], [2]]),
    ("enum, type", tool({"type": "string", "enum": [1, "x"]}), [["x"]], [[1]]),
    ("enum, not", tool({"enum": ["a", "b"], "not": {"const": "a"}}), [["b"]], [["a"]]),
    ("enum, const", tool({"enum": ["a", "b"], "const": "b"}), [["b"]], [["a"]]),
    ("const", tool({"const": {"a": [1, True]}}), ['{"v": {"a":[1,true]}}'], [[{"a": [1, 1]}], [{}]]),
    ("boolean schema", tool(True), [[1]], []),
    ("false property", {"properties": {"a": False, "b": INTEGER}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    ("minimum", tool({**INTEGER, "minimum": 3, "maximum": 12}), [[3], [12]], [[2], [13], [-3]]),
    ("minimum 2.5", tool({**INTEGER, "minimum": 2.5, "maximum": 4.5}), [[3], [4]], [[2], [5]]),
    ("exclusive", tool({**INTEGER, "exclusiveMinimum": 3, "exclusiveMaximum": 5}), [[4]], [[3], [5]]),
    ("past 64 bits", tool({**INTEGER, "minimum": 0, "maximum": 10**30}), [[0], [2**63 - 1]], [[10**31], [-1]]),
    ("decimals", tool({"type": "number", "minimum": 0.1, "maximum": 0.3}), [[0.1], [0.25], [0.3]], [[0.09], [0.31]]),
    ("above 0", tool({"type": "number", "exclusiveMinimum": 0}), [[0.5], [1]], [[0], [-1], '{"v": 0.0}']),
    ("fine bound", tool({"type": "number", "minimum": 1e-7, "maximum": 6.6e-6}), [], [[0], [7e-06], "{}"]),
    ("large bound", tool({"type": "number", "exclusiveMinimum": 1e15}), [[1e15 + 1]], [[1e15], [1e14]]),
    ("multipleOf", tool({**INTEGER, "multipleOf": 5}), [[0], [-10], [125]], [[7], [-1]]),
    ("multipleOf, number", tool({"type": "number", "multipleOf": 2}), [[4]], [[3], [2.5]]),
    ("minLength", tool({**STRING, "minLength": 2}), [["ab"], ["éé"]], [[""], ["a"]]),
    ("maxLength", tool({**STRING, "maxLength": 2}), [[""], ["ab"], ["😀😀"]], [["abc"], ["😀😀😀"]]),
    ("lengths", tool({**STRING, "minLength": 1, "maxLength": 3}), [["a"], ["abc"]], [[""], ["abcd"]]),
    ("pattern", tool({**STRING, "pattern": "^[a-c]{2,3}$"}), [["ab"]], [["a"], ["abca"], ["xy"]]),
    ("pattern, searched", tool({**STRING, "pattern": "[a-c]"}), [["xay"], ["a"]], [["xyz"], [""]]),
    ("pattern, prefix", tool({**STRING, "pattern": "^https?://"}), [["http://a.b"]], [["ftp://a"], ["xhttp://"]]),
    ("pattern, length", tool({**STRING, "pattern": "^[a-z]+$", "maxLength": 3}), [["abc"]], [["abcd"], ["A"], [""]]),
    ("pattern, branches", tool({**STRING, "pattern": "^a$|^b+$"}), [["a"], ["bb"]], [["aa"], ["c"]]),
    ("pattern, quote", tool({**STRING, "pattern": '^a["b]$'}), [["ab"]], [["aa"], '{"v": "a\\\\"}']),
    ("format", tool({**STRING, "format": "date"}), [["2024-02-29"]], [[7]]),
    ("format unknown", tool({**STRING, "format": "made-up"}), [["anything"]], [[7]]),
    ("required", {**A, "required": ["a"]}, ['{"a": 1}'], ["{}", '{"a": "x"}']),
    ("required, undeclared", {**A, "required": ["z"]}, ['{"z": [1]}', '{"a": 1, "z": 2}'], ["{}", '{"a": 1}']),
    ("map", tool({"type": "object", "additionalProperties": INTEGER}), [[{}], [{"x": 1, "y": 2}]], [[{"x": "1"}]]),
    (
        "map, any names",
        tool({"type": "object", "propertyNames": STRING, "additionalProperties": INTEGER, "dependentRequired": {}}),
        [[{"x": 1}]],
        [[{"x": "1"}]],
    ),
    ("additionalProperties false", {**A, "additionalProperties": False}, ['{"a": 1}'], ['{"a": 1, "b": 1}']),
    ("items", tool({"type": "array", "items": INTEGER}), [[[]], [[1, 2]]], [[["x"]], [[1, None]]]),
    ("minItems", tool({"type": "array", "minItems": 1, "maxItems": 2}), [[[1]], [["x", 2]]], [[[]], [[1, 2, 3]]]),
    (
        "prefixItems",
        tool({"type": "array", "prefixItems": [INTEGER, STRING], "items": NULL}),
        [[[1, "x", None]], [[1]]],
        [[["x"]], [[1, 2]], [[1, "x", 3]]],
    ),
    (
        "prefixItems, few",
        tool({"type": "array", "prefixItems": [INTEGER, STRING], "maxItems": 1}),
        [[[1]], [[]]],
        [[[1, "x"]]],
    ),
    ("anyOf", tool({"anyOf": [INTEGER, NULL], "default": None}), [[1], [None]], [["x"]]),
    (
        "anyOf, beside",
        {"properties": {"a": INTEGER, "b": STRING}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a": 1}', '{"b": "x"}'],
        ["{}"],
    ),
    ("allOf", {"allOf": [A, B]}, ['{"a": 1, "b": "x"}'], ['{"a": 1}', '{"b": "x"}']),
    ("allOf, bounds", tool({"allOf": [{**INTEGER, "minimum": 1}, {"maximum": 5}]}), [[1], [5]], [[0], [6]]),
    (
        "allOf, choices",
        tool({"allOf": [{"anyOf": [INTEGER, STRING]}, {"anyOf": [STRING, NULL]}]}),
        [["x"]],
        [[1], [None]],
    ),
    ("oneOf by type", tool({"oneOf": [INTEGER, STRING]}), [[1], ["x"]], [[None]]),
    (
        "oneOf by const",
        tool({"oneOf": [KIND_A, KIND_B]}),
        [[{"kind": "a", "x": 1}], [{"kind": "c"}]],
        [[{"kind": "d"}], [{}]],
    ),
    ("oneOf by required", {"oneOf": [A, B]}, ['{"a": 1}', '{"b": "x"}'], ["{}", '{"a": 1, "b": "x"}']),
    ("$ref", tool({"$ref": "#/$defs/n"}, n=INTEGER), [[1]], [["x"]]),
    ("$ref, beside", tool({"$ref": "#/$defs/n", "minimum": 3, "title": "N"}, n=INTEGER), [[3]], [[2]]),
    (
        "$ref, escaped",
        tool(
            {
                "type": "array",
                "prefixItems": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~0d"}, {"$ref": "#/$defs/e%20f"}],
            },
            **POINTERS,
        ),
        [[[1, "x", None]]],
        [[["x"]], [[1, 1]]],
    ),
    ("$ref, definitions", {**tool({"$ref": "#/definitions/n"}), "definitions": {"n": INTEGER}}, [[1]], [["x"]]),
    (
        "$ref, to a property",
        {"properties": {"a": INTEGER, "b": {"$ref": "#/properties/a"}}},
        ['{"b": 1}'],
        ['{"b": "x"}'],
    ),
    (
        "$ref, recursive",
        tool({"$ref": "#/$defs/node"}, node=NODE),
        [[{"value": 1, "next": {"next": {}}}]],
        [[{"next": {"value": "x"}}]],
    ),
    (
        "$ref, root",
        {"properties": {"v": INTEGER, "next": {"$ref": "#"}}},
        ['{"next": {"next": {"v": 1}}}'],
        ['{"next": {"v": "x"}}'],
    ),
    ("if alone", tool({**STRING, "if": {"const": "x"}}), [["x"]], [[1]]),
]

# A schema, the path and the keyword that are reported, a call that the schema rejects and xgrammar would admit.
UNHELD = [
    (tool({**STRING, "not": {"const": "x"}}), "/properties/v", "not", ["x"]),
    (tool({"if": INTEGER, "then": {"minimum": 3}}), "/properties/v", "if", [1]),
    ({**A, "required": [], "dependentRequired": {"a": ["b"]}}, "", "dependentRequired", '{"a": 1}'),
    ({**A, "dependentSchemas": {"a": {"required": ["b"]}}}, "", "dependentSchemas", '{"a": 1}'),
    (
        tool({"type": "object", "minProperties": 2, "additionalProperties": True}),
        "/properties/v",
        "minProperties",
        '{"v": {"a":1,"a":1}}',
    ),
    (
        tool({"type": "object", "patternProperties": {"^b": INTEGER, "b$": {"minimum": 2}}}),
        "/properties/v",
        "patternProperties",
        [{"b": 1}],
    ),
    (tool({"type": "array", "items": INTEGER, "uniqueItems": True}), "/properties/v", "uniqueItems", [[1, 1]]),
    (tool({"type": "array", "items": INTEGER, "contains": {"const": 3}}), "/properties/v", "contains", [[1]]),
    (tool({"oneOf": [INTEGER, {"type": "number"}]}), "/properties/v", "oneOf", [1]),
    (tool({"oneOf": [{"enum": ["a"]}, STRING]}), "/properties/v", "oneOf", ["a"]),
    # The first branch has no type, so it also allows every integer.
    (tool({"oneOf": [{"properties": {"a": INTEGER}, "required": ["a"]}, INTEGER]}), "/properties/v", "oneOf", [5]),
    (
        tool({"oneOf": [{"properties": KIND_A["properties"]}, {"properties": KIND_B["properties"]}]}),
        "/properties/v",
        "oneOf",
        [{}],
    ),
    (tool({"type": "number", "multipleOf": 0.5}), "/properties/v", "multipleOf", [0.3]),
    (tool({**INTEGER, "multipleOf": 7, "minimum": 0}), "/properties/v", "multipleOf", [8]),
    (tool({**INTEGER, "multipleOf": 5000}), "/properties/v", "multipleOf", [7]),
    (tool({**STRING, "pattern": "^(?!a)[a-z]$"}), "/properties/v", "pattern", ["a"]),
    (tool({**STRING, "pattern": "a^b"}), "/properties/v", "pattern", ["ab"]),
    (tool({**STRING, "pattern": "^[a-z]+-[a-z]+$", "maxLength": 4}), "/properties/v", "maxLength", ["aa-aa"]),
    (tool({**STRING, "maxLength": 129}), "/properties/v", "maxLength", ["x" * 130]),
    (tool({"$ref": "#/$defs/n", "not": {"const": 2}}, n=INTEGER), "/properties/v", "not", [2]),
    (tool({"$dynamicRef": "#n"}, n={**INTEGER, "$dynamicAnchor": "n"}), "/properties/v", "$dynamicRef", ["x"]),
    (tool({"$ref": "#n"}, n={**INTEGER, "$anchor": "n"}), "/properties/v", "$ref", ["x"]),
]

# A schema, the path and the keyword that are reported: what is rare, does not compile, never ends or has no target.
REFUSED = [
    (tool({**INTEGER, "multipleOf": 7, "minimum": 1, "maximum": 20}), "/properties/v", "multipleOf"),
    ({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2}, "", "minProperties"),
    ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, "", "maxProperties"),
    (tool({"type": "object", "minProperties": 1}), "/properties/v", "minProperties"),
    (tool({"type": "object", "maxProperties": 2}), "/properties/v", "maxProperties"),
    (tool({"type": "object", "propertyNames": {"pattern": "^b+$"}}), "/properties/v", "propertyNames"),
    (tool({"type": "object", "propertyNames": {"enum": ["a"]}}), "/properties/v", "propertyNames"),
    (tool({"type": "object", "patternProperties": {"^x-": INTEGER}}), "/properties/v", "patternProperties"),
    ({"properties": {"x-a": {"minimum": 3}}, "patternProperties": {"^x-": INTEGER}}, "", "patternProperties"),
    ({**A, "unevaluatedProperties": False}, "", "unevaluatedProperties"),
    (tool({"type": "array", "uniqueItems": True, "maxItems": 1}), "/properties/v", "uniqueItems"),
    ({**A, "dependentRequired": {"a": ["b"]}}, "", "dependentRequired"),
    (tool({"type": "array", "unevaluatedItems": INTEGER}), "/properties/v", "unevaluatedItems"),
    (tool({**STRING, "pattern": "[a-c]", "maxLength": 9}), "/properties/v", "maxLength"),
    (tool({**STRING, "pattern": r"^(a)\1$"}), "/properties/v", "pattern"),
    (tool({**STRING, "pattern": r"\bfoo\b"}), "/properties/v", "pattern"),
    (tool({**STRING, "pattern": "(?i)a"}), "/properties/v", "pattern"),
    (tool({**STRING, "pattern": r"\p{L}"}), "/properties/v", "pattern"),
    (tool({**STRING, "pattern": "("}), "/properties/v", "pattern"),
    (tool({**STRING, "pattern": "^[a-z]{1,200}$"}), "/properties/v", "pattern"),
    (tool({**STRING, "pattern": "^<b>$"}), "/properties/v", "pattern"),
    (tool({"allOf": [{**STRING, "pattern": "a"}, {"pattern": "b"}]}), "/properties/v/allOf/1", "pattern"),
    (tool({**INTEGER, "minimum": 10**20}), "/properties/v", "minimum"),
    (tool({"type": "number", "exclusiveMinimum": 1e-9, "maximum": 2e-9}), "/properties/v", "maximum"),
    (
        tool({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}),
        "/properties/v",
        "unevaluatedProperties",
    ),
    (tool({"$ref": "https://example.com/schema.json"}), "/properties/v", "$ref"),
    (tool({"$ref": "#/nowhere"}), "/properties/v", "$ref"),
    (tool({"$ref": "#/$defs/n"}, n={"$ref": "#/$defs/n"}), "/$defs/n", "$ref"),
    (tool({"$ref": "#/$defs/n"}, n={"anyOf": [{"$ref": "#/$defs/n"}, INTEGER]}), "/$defs/n", "anyOf"),
    (
        tool({"$ref": "#/$defs/n"}, n={**NODE, "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}),
        "/$defs/n",
        "required",
    ),
    (tool({"type": "any"}), "/properties/v", "type"),
    (tool({"type": "array", "items": [INTEGER]}), "/properties/v", "items"),
    (tool({**INTEGER, "exclusiveMinimum": True}), "/properties/v", "exclusiveMinimum"),
    (tool({**A, "dependencies": {"a": ["b"]}}), "/properties/v", "dependencies"),
    (tool({**INTEGER, "minimum": 5, "maximum": 3}), "/properties/v", "minimum"),
    (tool({"enum": []}), "/properties/v", "enum"),
    (tool({"enum": [10**20 + 1]}), "/properties/v", "enum"),
    ({"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/m"}}, "$defs": BARREN}, "/$defs/n", "required"),
    (tool({"type": "string", "const": 1}), "/properties/v", "const"),
    (tool({"type": "array", "minItems": 2, "maxItems": 1}), "/properties/v", "minItems"),
    (tool({"allOf": [INTEGER, STRING]}), "/properties/v/allOf/0", "type"),
    (tool(False), "", "required"),
    ({"type": "array"}, "", "type"),
    (tool({"enum": ["</b>", "<t"]}), "/properties/v", "enum"),
    ({"properties": {"<t>": INTEGER}}, "", "properties"),
]

# A schema and a call that it admits and its grammar does not.
NARROWER = [
    ("a number that no float holds", tool({"type": "number"}), '{"v": 6.7E35316}'),
    ("an integer past 64 bits", tool(INTEGER), [10**30]),
    ("order", {"properties": {"a": {}, "b": {}}}, '{"b": 1, "a": 1}'),
    ("other names", {"properties": {"a": {}}}, '{"b": 1}'),
    ("other names, asked for", {"properties": {"a": {}}, "additionalProperties": True}, '{"b": 1}'),
    ("a name twice", {"properties": {"a": {}}}, '{"a": 1, "a": 1}'),
    ("a tool without arguments", {"type": "object"}, '{"a": 1}'),
    ("other items", tool({"type": "array", "prefixItems": [INTEGER]}), [[1, 2]]),
    ("types not spoken of", tool({"minLength": 1}), [7]),
    ("integer as a decimal", tool(INTEGER), '{"v": 1.0}'),
    ("exponents between bounds", tool({"type": "number", "minimum": 0}), '{"v": 1e3}'),
    ("many decimals between bounds", tool({"type": "number", "minimum": 0}), '{"v": 0.00000001}'),
    ("< beside a pattern", tool({**STRING, "pattern": "^.$"}), ["<"]),
    ("digits of other scripts", tool({**STRING, "pattern": r"^\d$"}), ["٣"]),
    ("format", tool({**STRING, "format": "date"}), ["tomorrow"]),
    ("excluded values", tool({"enum": ["</b>", "b"]}), ["</b>"]),
    ("two spaces", tool(INTEGER), '{"v":  1}'),
]

# Given the schema as it is, xgrammar admits the call, or writes invalid JSON.
CORRECTED = [
    (tool({**STRING, "minLength": 2}), ["a"]),
    (tool({**STRING, "pattern": '^a"b$'}), '{"v": "a"b"}'),
    (tool({**STRING, "format": "json-pointer"}), '{"v": "/""}'),
    (tool({**STRING, "pattern": "^.*$"}), ["</tool_call>"]),
    (tool({**STRING, "pattern": "^[a-z]+$", "minLength": 3}), ["aa"]),
    ({**A, "required": ["z"]}, '{"a": 1}'),
    ({**A, "required": [], "additionalProperties": STRING}, '{"\\u0061": "x"}'),
    (tool({"type": "string", "enum": [1, "x"]}), [1]),
    (tool({"$ref": "#/$defs/n", "minimum": 3}, n=INTEGER), [1]),
    (tool({"allOf": [{**INTEGER, "minimum": 1}, {"maximum": 5}]}), [9]),
    ({**A, "required": [], "anyOf": [{"required": ["a"]}]}, "{}"),
    (tool({"minimum": 3}), [1]),
    (tool({"type": "number", "exclusiveMinimum": 1e15}), '{"v": 1000000000000000.01}'),
]
