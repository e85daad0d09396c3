"""Secrets are struck out of texts, however they are written; ordinary texts stay as they are; it is quick."""
# R26

from __future__ import annotations

import copy
import random
import re
import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from secret_samples import AWKWARD, EMBEDDED, ENCODINGS, HOSTILE, KEY, KEY_LIKE, ORDINARY, SIZE, VALUES, registry

from mcprl.secrets import SecretRegistry, looks_secret
from processor_time import least_s

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


# ---- registered values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_registered_value_is_found_in_every_encoding(encoding, value):
    written = ENCODINGS[encoding](value.strip())
    text = registry(THE_KEY=value).redact(f"before ({written}) after")
    assert text == "before ([redacted THE_KEY]) after"


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("encoding", EMBEDDED)
def test_a_registered_value_is_found_inside_a_longer_base64_text(encoding, value):
    written = EMBEDDED[encoding](value.strip())
    text = registry(THE_KEY=value).redact(f"before ({written}) after")
    before, after = text.removeprefix("before (").removesuffix(") after").split("[redacted THE_KEY]")
    assert written.startswith(before)
    assert written.endswith(after)
    # Three bytes make four characters; of those at the ends, which hold bits of the neighbours too, one may be left.
    assert len(before + after) <= len(written) - 4 * len(value.strip().encode()) // 3 + 1


@pytest.mark.slow
@given(
    value=st.text(st.characters(codec="utf-8"), min_size=8, max_size=40)
    .map(str.strip)
    .filter(lambda text: len(text) > 7 and "redacted" not in text),
    encoding=st.sampled_from(sorted(ENCODINGS)),
)
def test_any_value_is_found_in_every_encoding(value, encoding):
    written = ENCODINGS[encoding](value)
    assert registry(THE_KEY=value).redact(f"before ({written}) after") == "before ([redacted THE_KEY]) after"


def test_of_two_values_the_longer_goes_whole():
    secrets = registry(SHORT="abcdefgh1234", LONG="abcdefgh12345678")
    assert secrets.redact("abcdefgh12345678 abcdefgh1234") == "[redacted LONG] [redacted SHORT]"


def test_a_value_added_later_is_found_and_one_added_twice_keeps_its_first_name():
    secrets = registry(FIRST=KEY)
    assert secrets.redact(KEY + AWKWARD) == "[redacted FIRST]" + AWKWARD
    secrets.add("SECOND", KEY)
    secrets.add("THIRD", AWKWARD)
    assert secrets.redact(KEY + AWKWARD) == "[redacted FIRST][redacted THIRD]"


@pytest.mark.parametrize("kept", [8, 16, 31])
def test_the_beginning_of_a_value_where_a_text_was_cut_goes_too(kept):
    assert registry(THE_KEY=KEY).redact("key " + KEY[:kept]) == "key [redacted THE_KEY]"


def test_a_few_characters_that_begin_a_value_stay():
    assert registry(THE_KEY=KEY).redact("key " + KEY[:7]) == "key " + KEY[:7]


@pytest.mark.parametrize("value", ["", "1", "UTC", "1234567", " short "])
def test_a_short_value_is_no_secret_that_one_can_search_for(value, caplog):
    secrets = registry(TIMEZONE=value)
    assert secrets.redact(f"at {value} o'clock") == f"at {value} o'clock"
    assert not caplog.records


def test_a_short_value_with_the_name_of_a_key_is_warned_about_without_showing_it(caplog):
    registry(FMP_API_KEY="demo77")
    assert "FMP_API_KEY" in caplog.text
    assert "demo77" not in caplog.text


def test_a_marker_written_by_a_server_hides_nothing():
    secrets = registry(THE_KEY=KEY)
    assert KEY not in secrets.redact(f"[redacted {KEY}]")
    assert KEY not in secrets.redact(f"[redacted THE_KEY {KEY}] [redacted key]{KEY}")


def test_a_value_that_is_part_of_the_markers_does_not_tear_them_up():
    secrets = registry(PASSWORD="redacted", THE_KEY=KEY)
    assert secrets.redact(secrets.redact(KEY)) == "[redacted THE_KEY]"


def test_json_values_are_redacted_in_texts_and_keys_and_keep_their_shape():
    value = {"a": [1, 2.5, None, True, {"url": f"x?apikey={KEY}"}], f"k-{KEY}": "ok", "text": "AAPL", "t": (KEY,)}
    before = copy.deepcopy(value)
    assert registry(FMP=KEY).redact_json(value) == {
        "a": [1, 2.5, None, True, {"url": "x?apikey=[redacted FMP]"}],
        "k-[redacted FMP]": "ok",
        "text": "AAPL",
        "t": ["[redacted FMP]"],
    }
    assert value == before


def test_two_keys_that_become_the_same_keep_both_entries():
    one, two = "ghp_" + "a1" * 18, "ghp_" + "b2" * 18
    assert registry().redact_json({one: 1, two: 2}) == {"[redacted key]": 1, "[redacted key] 2": 2}


# ---- what looks like a key -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", KEY_LIKE)
def test_what_looks_like_a_key_is_struck_out_and_nothing_around_it(text):
    secret, replacement = KEY_LIKE[text]
    clean = registry().redact(text)
    assert clean.replace(" ", "") == text.replace(secret, replacement).replace(" ", "")
    assert registry().redact(clean) == clean


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text):
    assert registry(FMP_API_KEY=KEY).redact(text) == text


def test_this_project_s_own_code_stays_as_it_is():
    source = Path(__file__).resolve().parents[2] / "src" / "mcprl"
    files = [path for path in source.rglob("*.py") if path.name != "secrets.py"]
    assert len(files) > 30
    changed = [str(path) for path in files if registry().redact(path.read_text()) != path.read_text()]
    assert changed == []


@given(st.text())
def test_text_of_any_letters_stays_as_it_is(text):
    # Random characters are no keys: the shapes ask for more than chance brings.
    assert registry(FMP_API_KEY=KEY).redact(text) == text


PIECES = st.sampled_from(
    [
        *(*KEY_LIKE, KEY, AWKWARD, "aB3" * 8, "dXNlcjpwYXNz", "-----BEGIN PRIVATE KEY-----"),
        *("[redacted key]", "[redacted ", "]", "[", "?", "&", "=", ".", "-", "_", " ", '"', "%3Fkey%3D"),
        *("token=", "apikey=", "://", "a:b@", "Authorization: ", "Bearer ", "Basic ", "sk-", "ghp_", "eyJ"),
    ]
)


@given(st.lists(PIECES | st.text(max_size=6), max_size=12).map("".join))
@example("X" + KEY + "sk-" + "aB3" * 8)
@example("?key=lmnopqr.sk-" + "aB3" * 8)
def test_redacting_twice_is_redacting_once(text):
    secrets = registry(THE_KEY=KEY, AWKWARD=AWKWARD, BRACKET="aB3]aB3[red", EDGE="x[redacted")
    once = secrets.redact(text)
    assert secrets.redact(once) == once
    assert KEY not in once


SECRET_NAMES = [
    *(
        "FMP_API_KEY",
        "apiKey",
        "X-Api-Key",
        "Authorization",
        "SLACK_BOT_TOKEN",
        "GITHUB_PAT",
        "DB_PASSWORD",
        "MYSQL_PWD",
    ),
    *("DBPASSWORD", "CLIENT_SECRET", "Cookie", "AWS_ACCESS_KEY_ID", "--api-key", "SMTP_PASS", "AWS_CREDENTIALS"),
]
OTHER_NAMES = [
    *("HOME", "PATH", "PWD", "TZ", "MONKEY", "KEYBOARD", "AUTHOR", "TOKENIZERS_PARALLELISM", "SSL_KEY_FILE", ""),
    *("SSH_AUTH_SOCK", "AUTH_MODE", "AUTH_URL", "MAX_TOKENS", "COMPASS"),
]


def test_names_of_secrets_are_told_from_other_names():
    assert [name for name in SECRET_NAMES if not looks_secret(name)] == []
    assert [name for name in OTHER_NAMES if looks_secret(name)] == []


# ---- recorded results ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded tool results are not on this machine")
def test_each_key_in_the_recorded_tool_results_is_found():
    generator = random.Random(7)
    found = 0
    for path in sorted(SHARED.glob("*.json")):
        keys = []

        def real_looking(match: re.Match[str], keys: list[str] = keys) -> str:
            keys.append("".join(generator.choices(string.ascii_letters + string.digits, k=32)))
            return match[1] + keys[-1]

        text = re.sub(r"(apikey=)REDACTED", real_looking, path.read_text())
        clean = registry().redact(text)
        assert [key for key in keys if key in clean] == []
        assert clean.count("apikey=[redacted key]") == len(keys)
        found += len(keys)
    assert found == 14


# ---- time ------------------------------------------------------------------------------------------------------------


def processor_seconds(text: str, secrets: SecretRegistry) -> float:
    return least_s(lambda: secrets.redact(text), looks=10)


@pytest.mark.slow
@pytest.mark.parametrize("unit", HOSTILE)
def test_64_kib_made_to_be_slow_take_less_than_100_ms(unit, untraced):
    secrets = registry(THE_KEY=KEY, AWKWARD=AWKWARD, OTHER="correct horse battery")
    text = (unit * (SIZE // len(unit) + 1))[:SIZE]
    assert processor_seconds(text, secrets) < 0.100
    assert processor_seconds("-----BEGIN PRIVATE KEY-----" + text[27:], secrets) < 0.100


def test_time_grows_with_the_length_and_no_faster():
    secrets = registry(THE_KEY=KEY)
    text = "?key=sk-a1 bearer authorization: eyJ" * 1000
    assert processor_seconds(text * 8, secrets) < 8 * 4 * processor_seconds(text, secrets)


def test_a_small_text_without_secrets_costs_little(untraced):
    secrets = registry(**{f"KEY_{n}": f"{n}{KEY}" for n in range(3)})
    text = '{"symbol": "AAPL", "price": 189.84, "volume": 51234567, "name": "Apple Inc.", "exchange": "NASDAQ"}'
    thousand_s = least_s(lambda: [secrets.redact(text) for _ in range(1000)], looks=5)
    assert thousand_s < 2 * 20e-3  # about 4 ms on a quiet machine; the bar is 20 ms, and noise may double it
