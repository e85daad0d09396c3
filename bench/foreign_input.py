"""Files and texts of others, damaged and hostile: each is read or refused by name, and in time.

Recipes (and values of --set), task files (and preambles), schemas, patterns, chat templates and cassettes, each made of
sound and hostile ones by the damage of tests/unit/chat/mutations.py. Cassettes also get bytes overwritten in place.

  fewest              inputs of the kind that had the fewest
  kinds               for each kind: `inputs`, `read` without an error, `refused` by error code, `slowest_s`
  tracebacks          inputs that ended in anything but a McprlError
  slowest_s           processor time of the slowest input

    python bench/foreign_input.py [--ci]
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from transformers import AutoTokenizer

from mcprl.bounds import OverLimitError, is_found
from mcprl.chat.loading import TemplateRenderer
from mcprl.errors import McprlError
from mcprl.grammar.schemas import rewrite
from mcprl.recipe import load_recipe, settings
from mcprl.schemas import schema_search
from mcprl.tasks.files import load_preamble, read_task_file
from mcprl.tools.arguments import ArgumentCheck
from mcprl.tools.cassette import Cassette
from mcprl.tools.catalog import ToolDefinition
from servers.harness import run_bench, say

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "unit" / "chat")]

from mutations import Fuzz  # noqa: E402

SEED = 20_261_118
BARS = {"tracebacks": ("==", 0)}
AT_FULL_SIZE = {"fewest": (">=", 5000)}
SPEED = {"slowest_s": ("<=", 2)}

Read = Callable[[], object]

DEEP = ("[" * 2000, '{"a":' * 2000, "- " * 3000, "? " * 500, "{" * 3000, "(" * 5000)
NUMBERS = ("1e300", "1.0e-300", "-1", "0", ".nan", ".inf", "1e11", "9" * 5000, "0x" + "f" * 3000, "1:" * 500, "null")
BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 8)}]\n" for n in range(12)
)
YAML_PIECES = (
    *(
        "\n",
        "  ",
        "\t",
        ": ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a",
        "<<: *a",
        "&a [*a]",
        '"\\0"',
        "'",
        '"',
        "|\n",
        ">\n",
    ),
    *(
        "!!bool foo",
        "!!timestamp foo",
        "!!int ''",
        "!!float ''",
        "!!binary x",
        "!!set {a}",
        "!!omap [a: b]",
        "!!null x",
    ),
    *("!!python/name:os.system ''", "#", "%", "---\n", "...\n", "\x00", "\ufeff", "\u2028", "2026-99-99", BOMB),
    *("x" * 70_000, *DEEP, *NUMBERS),
)
JSON_PIECES = (
    *('"', "\\", ",", ":", "[", "]", "{", "}", "null", "true", "NaN", "1e999", "9" * 5000, "\\ud800", "\x00", "\n"),
    *('"matches": "(a+)+$"', '{"matches": "\\\\w{200}\\\\w{200}"}', '"a": 1, "a": 2,', '"tools": 3,', "x" * 100_000),
    *DEEP,
)
SCHEMA_PIECES = (
    *('"$ref": "#"', '"$ref": "#/$defs/a"', '"$ref": "http://x.test/"', '"pattern": "^(a+)+$"', '"pattern": "(?=a)"'),
    *('"allOf": [{"$ref": "#"}, {"$ref": "#"}]', '"enum": []', '"type": "array"', '"minLength": 1e9', '"not": {}'),
    *(
        '"patternProperties": {"(a|a)*b": {}}',
        '"multipleOf": 0',
        '"required": ["a", "a"]',
        '"$schema": "x"',
        '"$id": "y"',
    ),
    *(
        '"properties": {"a": {"type": "string"}}',
        '"oneOf": [{}, {}]',
        "true",
        "null",
        "[]",
        "{}",
        ",",
        '"maxItems": 1e99',
    ),
)
PATTERN_PIECES = (
    *("(", ")", "[", "]", "{", "}", "*", "+", "?", "|", "^", "$", ".", "\\", "\\w", "\\d{1000}", "\\p{L}", "(a+)+"),
    *(
        "(?i)",
        "(?=a)",
        "(?<a>b)",
        "\\1",
        "{1000}",
        "{1000}{1000}",
        "[^",
        "-",
        "&&",
        "[[:alpha:]]",
        "\\u{110000}",
        "\ud800",
    ),
    *("\x00", "(" * 500, "((a{100}){100}){100}", "a" * 5000, "|" * 3000, "[a-z\u0100-\uffff]" * 100),
)
GROWING = "{%% set n = namespace(x='aaaa') %%}{%% for i in range(99) %%}{%% set n.x = %s %%}{%% endfor %%}{{ n.x }}"
HOSTILE_TEMPLATES = (
    *("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{{ 9 ** 9999999 }}"),
    *("{{ 'x' * 10**10 }}", "{{ 'x'|center(10**10) }}", "{{ 'x'.center(9999999999) }}", "{{ '%9999999999d' % 1 }}"),
    *(GROWING % "n.x ~ n.x", GROWING % "n.x + n.x", GROWING % "[n.x, n.x]", GROWING % "n.x.replace('a', n.x)"),
    *("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ messages[99].content }}", "{{ raise_exception('no') }}"),
    *("{{ 1 // 0 }}", "{{ " + "1+" * 3000 + "1 }}", "{% if 1 %}" * 60 + "{% endif %}" * 60, "{% include 'x' %}"),
)
TEMPLATE_PIECES = (
    *("{{", "}}", "{%", "%}", "{#", "#}", "{{ x }}", "{% endfor %}", "{% endif %}", "{% if x %}", "|trim", "~", "\x00"),
    *("{{ " + "(" * 3000, "{% for a in b %}" * 30, "x" * 70_000, *HOSTILE_TEMPLATES),
)


def recipes(folder: Path) -> Iterator[Read]:
    texts = [path.read_text() for path in sorted((ROOT / "recipes").glob("*.yaml"))]
    hostile = [BOMB, "a: &a [*a]\n", "name: a\nmodel: &m {path: *m}\n", *DEEP]
    fuzz = Fuzz(SEED, [*texts, *texts, *hostile], YAML_PIECES)
    names = [setting.path.replace("NAME", "directory") for setting in settings()]
    values = Fuzz(SEED, [*NUMBERS, "[a, b]", "{a: 1}", "text", "true"], YAML_PIECES)
    random = Random(SEED)
    path, sound = folder / "recipe.yaml", ROOT / "recipes" / "hello-cpu.yaml"
    while True:
        path.write_bytes(fuzz.next().encode(errors="surrogatepass"))
        yield lambda: load_recipe(path)
        override = f"{random.choice(names)}={values.next() if random.random() < 0.7 else random.choice(NUMBERS)}"
        yield lambda override=override: load_recipe(sound, [override])


def task_files(folder: Path) -> Iterator[Read]:
    tasks = [path.read_text()[:20_000] for path in sorted((ROOT / "recipes").glob("*/*.jsonl"))]
    row = {"prompt": [{"role": "user", "content": "x"}], "env_class": "e", "reward_spec": {"method": "rule"}}
    preamble = json.dumps([{"role": "system", "content": "x"}, {"role": "tool", "content": "y", "name": "z"}])
    fuzz = Fuzz(SEED, [*tasks, *(text.splitlines()[0] for text in tasks), json.dumps([row]), preamble], JSON_PIECES)
    path = folder / "tasks.jsonl"
    while True:
        path.write_bytes(fuzz.next().encode(errors="surrogatepass"))
        yield lambda: read_task_file(path)
        yield lambda: load_preamble(path)


def schemas(_: Path) -> Iterator[Read]:
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(25)} | {"d25": {}}
    sound = [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}, "b": {"enum": [1, 2]}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$defs": {"a": {}}},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": False, "minProperties": 1},
        {"$ref": "#/$defs/d0", "$defs": doubled},
        {"type": "object", "properties": {"a": {"enum": list(range(3000)), "pattern": "(a|a)*b"}}},
    ]
    fuzz = Fuzz(SEED, [json.dumps(each) for each in sound], SCHEMA_PIECES)
    values: tuple[dict[str, Any], ...] = ({}, {"a": "a" * 40 + "!", "b": 1}, {"a": [[[{}]]] * 20})
    while True:
        try:
            schema = json.loads(fuzz.next())
        except (ValueError, RecursionError):
            continue
        if isinstance(schema, dict):
            yield lambda schema=schema: _use_schema(schema, values)


def _use_schema(schema: dict[str, Any], values: tuple[dict[str, Any], ...]) -> None:
    check = ArgumentCheck("tool", "server", schema)
    for value in values:
        check.problem(value)
    try:
        rewrite(schema)
    except OverLimitError:
        return  # `make_grammar` makes a ToolLimitError of it


def patterns(folder: Path) -> Iterator[Read]:
    sound = [r"^[A-Z]{4}$", r"(?i)rate limit|upstream", r"^(a+)+$", r"\b\d{4}-\d{2}\b", r"(x+x+)+y", r"^\{\"error\""]
    fuzz = Fuzz(SEED, sound, PATTERN_PIECES)
    while True:
        pattern = fuzz.next()
        yield lambda pattern=pattern: _use_pattern(pattern, folder / "tasks.jsonl")


def _use_pattern(pattern: str, path: Path) -> None:
    """As a schema's, and as that of a task."""
    text = "a" * 2000 + "!\ud800"
    search = schema_search(pattern)
    if search is not None:
        search(text)
    path.write_text(json.dumps({"id": "a", "prompt": "x", "answer": {"matches": pattern}}))
    read_task_file(path)
    is_found(pattern, text)


def templates(_: Path) -> Iterator[Read]:
    tokenizer: Any = AutoTokenizer.from_pretrained(ROOT / ".cache" / "models" / "tiny-qwen3")
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    sound = [tokenizer.chat_template, plain, plain + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"]
    fuzz = Fuzz(SEED, [*sound * 9, *(f"{plain}{each}" for each in HOSTILE_TEMPLATES)], TEMPLATE_PIECES)

    def load(text: str) -> None:
        tokenizer.chat_template = text
        TemplateRenderer(tokenizer)

    while True:
        text = fuzz.next()
        yield lambda text=text: load(text)


VIEWS = (
    "CREATE VIEW recordings AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id, "
    "'s' AS server, 'v' AS version, 't' AS tool, '{}' AS arguments, x'00' AS answer, 0 AS truncated FROM n",
    "CREATE VIEW recordings AS SELECT 1 AS id, 's' AS server, '' AS version, 't' AS tool, '{}' AS arguments, "
    "zeroblob(1000000000) AS answer, 0 AS truncated",
)


def make_cassettes(folder: Path) -> list[bytes]:
    """Sound ones, and hostile ones that replace a table by a view, or hold values of other types."""
    folder.mkdir(exist_ok=True)
    path = folder / "sound.sqlite"
    with Cassette.open(path, writable=True) as cassette:
        tool = ToolDefinition(name="t", description="d", parameters={"type": "object"})
        cassette.record_tools("s", "v", [tool])
        for number in range(60):
            cassette.record("s", "v", "t", {"a": number}, f"answer {number} " * 20)
    made = [path.read_bytes()] * 4
    nested = "replace(hex(zeroblob(3000)), '0', '[')"
    changes = [
        *(f"DROP TABLE recordings; {view}" for view in VIEWS),
        *(f"UPDATE recordings SET answer = {value}" for value in ("3", "x'ff'", "'text'")),
        *(f"UPDATE recordings SET arguments = {value}" for value in ("7", "x'ff'", "'[]'", nested)),
        *(f"UPDATE listings SET definitions = {value}" for value in ("5", "x'ff'", "'[3]'", nested)),
        "CREATE TRIGGER t AFTER INSERT ON listings BEGIN SELECT 1; END",
    ]
    for number, change in enumerate(changes):
        other = folder / f"hostile{number}.sqlite"
        other.write_bytes(made[0])
        connection = sqlite3.connect(other)
        connection.executescript(change)
        connection.close()
        made.append(other.read_bytes())
    return made


def cassettes(folder: Path) -> Iterator[Read]:
    sound = make_cassettes(folder / "cassettes")
    fuzz = Fuzz(SEED, sound, [b"\x00" * 100, b"\xff" * 8, b"SQLite format 3\x00", b"CREATE VIEW", b"\x01", b"x" * 5000])
    random = Random(SEED)
    path = folder / "cassette.sqlite"
    while True:
        path.write_bytes(fuzz.next())
        yield lambda: _use_cassette(path)
        data = bytearray(random.choice(sound))
        for _ in range(random.randrange(20)):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_bytes(data)
        yield lambda: _use_cassette(path)


def _use_cassette(path: Path) -> None:
    for beside in ("-wal", "-shm"):
        Path(f"{path}{beside}").unlink(missing_ok=True)
    with Cassette.open(path, writable=False) as cassette:
        cassette.find("s", "v", "t", {"a": 3})
        cassette.tools()
        list(cassette.recordings())


KINDS = {
    "recipes": recipes,
    "task files": task_files,
    "schemas": schemas,
    "patterns": patterns,
    "chat templates": templates,
    "cassettes": cassettes,
}


def try_out(kind: str, count: int, folder: Path) -> dict[str, Any]:
    """What came of so many inputs of a kind."""
    refused: Counter[str] = Counter()
    slowest = 0.0
    tracebacks = 0
    for read in islice(KINDS[kind](folder), count):
        started = time.thread_time()
        try:
            read()
        except McprlError as error:
            refused[error.code] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this looks for
            tracebacks += 1
            say(f"RAISED by {kind}: {error!r:.300}")
        slowest = max(slowest, time.thread_time() - started)
    read_well = count - refused.total() - tracebacks
    figures = {"inputs": count, "read": read_well, "refused": dict(refused), "tracebacks": tracebacks}
    say(f"{kind}: {figures}, slowest {slowest:.2f} s")
    return figures | {"slowest_s": round(slowest, 2)}


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    kinds = {kind: try_out(kind, 200 if ci else 5000, folder) for kind in KINDS}
    return {
        "fewest": min(each["inputs"] for each in kinds.values()),
        "tracebacks": sum(each["tracebacks"] for each in kinds.values()),
        "slowest_s": max(each["slowest_s"] for each in kinds.values()),
        "kinds": kinds,
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, at_full_size=AT_FULL_SIZE, speed=SPEED))
