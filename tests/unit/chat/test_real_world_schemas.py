"""Schemas that others wrote compile into grammars whose calls they accept, or are refused by name."""
# R7

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from real_world_schemas import features_of, real_world_schemas

from schema_walks import held_or_named, walker_of

pytestmark = pytest.mark.process

FEATURES = {
    *("enum", "const", "items", "anyOf", "oneOf", "allOf", "$ref", "pattern", "format", "minimum", "minLength"),
    *("optional", "nested"),
}
MAX_COMPILE_S = 5.0


@pytest.fixture(scope="module")
def schemas(tmp_path_factory):
    return asyncio.run(real_world_schemas(tmp_path_factory.mktemp("logs")))


def test_there_are_many_of_them_and_they_use_what_schemas_can_say(schemas, record_property):
    counts = Counter(feature for schema in schemas.values() for feature in features_of(schema))
    for feature, count in sorted(counts.items()):
        record_property(f"schemas_with_{feature}", count)
    assert len(schemas) >= 200
    assert set(counts) == FEATURES


@pytest.mark.usefixtures("untraced")
def test_each_compiles_or_is_refused_by_name(schemas, smollm2, record_property):
    walker = walker_of(smollm2)
    verdicts = {name: held_or_named(walker, schema, seed) for seed, (name, schema) in enumerate(schemas.items())}
    refused = Counter(each.keyword for verdict in verdicts.values() for each in verdict.unheld[:1])
    held = {name: verdict for name, verdict in verdicts.items() if not verdict.unheld}
    compile_s = {name: verdict.compile_s for name, verdict in held.items()}
    # Twice the bar fails, and only if it is missed in a second measurement, too.
    for name in [name for name, taken_s in compile_s.items() if taken_s >= 2 * MAX_COMPILE_S]:
        compile_s[name] = min(compile_s[name], held_or_named(walker, schemas[name], 0).compile_s)
    slowest_s = max(compile_s.values())
    record_property("schemas_held", len(held))
    record_property("schemas_refused", len(verdicts) - len(held))
    record_property("slowest_compile_s", slowest_s)
    for keyword, count in refused.items():
        record_property(f"refused_for_{keyword}", count)
    assert slowest_s < 2 * MAX_COMPILE_S
    assert len(held) >= 200
    assert refused
    # A walk may be cut if a pattern requires a word that random choices do not find.
    assert sum(verdict.num_calls for verdict in held.values()) >= 2.9 * len(held)
