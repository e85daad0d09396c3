"""The SQL that makes the columns of the index from the files of trajectories.

Turns are JSON of a policy and of tools. DuckDB takes any of it: what has another shape becomes NULL, and half a
surrogate pair, which it takes for no JSON, is replaced first.
"""

from __future__ import annotations

__all__ = ["COLUMNS", "FULL_ROWS", "LIGHT_ROWS", "PREVIEW_CHARACTERS", "SOLVED", "TURN_SHAPE"]

PREVIEW_CHARACTERS = 160

COLUMNS = """
    file BIGINT, step BIGINT, task_id VARCHAR, member BIGINT, reward DOUBLE, solved BOOLEAN, stop VARCHAR,
    duration_s DOUBLE, turns BIGINT, calls BIGINT, faults BIGINT, tokens BIGINT, sampled_tokens BIGINT,
    tools VARCHAR[], preview VARCHAR, text VARCHAR, live BOOLEAN
"""

TURN_SHAPE = (
    '[{"text":"VARCHAR","calls":[{"name":"VARCHAR","arguments":"JSON"}],'
    '"observations":[{"tool":"VARCHAR","text":"VARCHAR","fault":"VARCHAR"}]}]'
)

# What `mcprl.episodes.succeeded` says, which costs the import of everything that plays episodes; a test compares them.
SOLVED = """
    CASE WHEN parts.answer IS NULL AND parts.state IS NULL AND parts.rubric IS NULL
    THEN coalesce(parts.calls = 1, false)
    ELSE coalesce(parts.answer >= 1, true) AND coalesce(parts.state >= 1, true) AND coalesce(parts.rubric >= 0.5, true)
    END
"""

_PARTS = """
    coalesce(
        try(json_transform(reward_parts, '{"answer":"DOUBLE","state":"DOUBLE","rubric":"DOUBLE","calls":"DOUBLE"}')),
        {answer: NULL::DOUBLE, state: NULL::DOUBLE, rubric: NULL::DOUBLE, calls: NULL::DOUBLE}
    ) AS parts
"""
# The number in step-00012.parquet; a file belongs to the step of its name, whatever its rows claim.
_FILE = r"regexp_extract(filename, 'step-(\d+)\.parquet$', 1)::BIGINT AS file"

LIGHT_ROWS = f"""
    SELECT file, step, task_id, member, reward, {SOLVED} AS solved, stop, duration_s,
        NULL::BIGINT AS turns, NULL::BIGINT AS calls, NULL::BIGINT AS faults, NULL::BIGINT AS tokens,
        NULL::BIGINT AS sampled_tokens, NULL::VARCHAR[] AS tools, NULL::VARCHAR AS preview, NULL::VARCHAR AS text,
        false AS live
    FROM (
        SELECT {_FILE}, step::BIGINT AS step, task_id::VARCHAR AS task_id, member::BIGINT AS member,
            reward::DOUBLE AS reward, stop::VARCHAR AS stop, duration_s::DOUBLE AS duration_s, {_PARTS}
        FROM read_parquet($files, filename = true)
    )
"""

_HALF_PAIRS = r"'\\u[dD][89abAB][0-9a-fA-F]{2}|\\u[dD][c-fC-F][0-9a-fA-F]{2}'"
_ALL_CALLS = "flatten(list_transform(said, lambda turn: turn.calls))"
_ALL_OBSERVATIONS = "flatten(list_transform(said, lambda turn: turn.observations))"

FULL_ROWS = rf"""
    SELECT file, step, task_id, member, reward, {SOLVED} AS solved, stop, duration_s,
        coalesce(len(said), 0) AS turns, coalesce(len(called), 0) AS calls,
        coalesce(len(list_filter(seen, lambda one: one.fault IS NOT NULL)), 0) AS faults,
        tokens, sampled_tokens,
        coalesce(list_distinct(list_transform(called, lambda call: call.name)), []) AS tools,
        left(coalesce(said[-1].text, ''), {PREVIEW_CHARACTERS}) AS preview,
        lower(concat_ws(chr(10),
            array_to_string(list_transform(said, lambda turn: turn.text), chr(10)),
            array_to_string(list_transform(called, lambda call: concat_ws(' ', call.name, call.arguments)), chr(10)),
            array_to_string(list_transform(seen, lambda one: one.text), chr(10))
        )) AS text,
        false AS live
    FROM (
        SELECT *, {_ALL_CALLS} AS called, {_ALL_OBSERVATIONS} AS seen
        FROM (
            SELECT {_FILE}, step::BIGINT AS step, task_id::VARCHAR AS task_id, member::BIGINT AS member,
                reward::DOUBLE AS reward, stop::VARCHAR AS stop, duration_s::DOUBLE AS duration_s, {_PARTS},
                len(sampled) AS tokens, list_aggregate(sampled, 'count_if') AS sampled_tokens,
                coalesce(
                    try(json_transform(turns::VARCHAR, '{TURN_SHAPE}')),
                    try(json_transform(regexp_replace(turns::VARCHAR, {_HALF_PAIRS}, '\uFFFD', 'g'), '{TURN_SHAPE}'))
                ) AS said
            FROM read_parquet($files, filename = true)
        )
    )
"""
