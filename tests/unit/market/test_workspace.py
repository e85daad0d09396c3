"""The chat workspace of the offline world: seeded channels and history, and posts of one episode only."""
# R14

from __future__ import annotations

import re
from datetime import date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import SEEDS

from mcprl_market.slack import find_channel
from mcprl_market.world import open_market, open_workspace
from mcprl_market.world.facts import Period
from processor_time import least_s

seeds = st.sampled_from(SEEDS)


def every_message(workspace):
    return [message for channel in workspace.channels() for message in workspace.history(channel.id, 99)]


@pytest.mark.parametrize("seed", SEEDS)
def test_eight_channels_have_ids_as_slack_gives_them(seed):
    channels = open_workspace(seed).channels()
    assert len(channels) == len({channel.id for channel in channels}) == len({c.name for c in channels}) == 8
    assert {"general", "random", "trading-desk", "alerts", "research"} <= {channel.name for channel in channels}
    assert all(re.fullmatch(r"C[A-Z0-9]{10}", channel.id) and channel.purpose for channel in channels)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_channel_has_a_history_before_now_newest_first(seed):
    workspace, now = open_workspace(seed), open_market(seed).now.timestamp()
    for channel in workspace.channels():
        messages = workspace.history(channel.id, 99)
        assert 5 <= len(messages) <= 15
        stamps = [message.timestamp for message in messages]
        assert stamps == sorted(set(stamps), reverse=True)
        assert all(re.fullmatch(r"\d{10}\.\d{6}", stamp) and float(stamp) < now for stamp in stamps)
        assert {message.channel_id for message in messages} == {channel.id}
        assert workspace.history(channel.id, 2) == messages[:2]
        assert workspace.history(channel.id, 0) == workspace.history(channel.id, -1) == ()


@given(seeds, st.integers(0, 7), st.sampled_from(["{}", "#{}", " #{} "]), st.sampled_from([str, str.upper, str.title]))
def test_a_channel_is_found_by_id_name_or_hash_name_in_any_case(seed, number, writing, spelling):
    workspace = open_workspace(seed)
    channel = workspace.channels()[number]
    assert find_channel(workspace.channels(), spelling(writing.format(channel.name))) == channel
    assert find_channel(workspace.channels(), spelling(channel.id)) == channel


@given(seeds, st.text())
def test_an_unknown_channel_is_not_found(seed, text):
    workspace = open_workspace(seed)
    known = {key.casefold() for channel in workspace.channels() for key in (channel.id, channel.name)}
    if text.strip().removeprefix("#").casefold() not in known:
        assert find_channel(workspace.channels(), text) is None


@given(seeds, st.lists(st.tuples(st.integers(0, 7), st.text()), max_size=20))
def test_posts_come_last_and_in_order_and_no_other_episode_sees_them(seed, posts):
    workspace, other = open_workspace(seed), open_workspace(seed)
    before = every_message(other)
    channels = workspace.channels()
    made = [workspace.post(channels[number].id, text) for number, text in posts]
    assert workspace.posts == tuple(made)
    assert [(message.channel_id, message.text) for message in made] == [(channels[n].id, text) for n, text in posts]
    stamps = [message.timestamp for message in made]
    assert stamps == sorted(set(stamps))
    assert all(stamp > message.timestamp for stamp in stamps for message in before)
    for channel in channels:
        own = [message for message in reversed(made) if message.channel_id == channel.id]
        assert workspace.history(channel.id, 99) == (*own, *other.history(channel.id, 99))
    assert other.posts == ()
    assert every_message(other) == every_message(open_workspace(seed)) == before


def test_the_same_posts_get_the_same_timestamps_in_every_episode():
    one, other = open_workspace(7), open_workspace(7)
    channel = one.channels()[0]
    assert [one.post(channel.id, "a"), one.post(channel.id, "b")] == [
        other.post(channel.id, "a"),
        other.post(channel.id, "b"),
    ]
    assert re.fullmatch(r"U[A-Z0-9]{10}", one.posts[0].user)


@pytest.mark.parametrize("use", [lambda w: w.post("C0000000000", "x"), lambda w: w.history("general", 5)])
def test_posting_to_or_reading_from_an_unknown_id_is_an_error_of_the_caller(use):
    workspace = open_workspace(7)
    with pytest.raises(KeyError):
        use(workspace)
    assert workspace.posts == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_colleagues_said_about_prices_and_results_was_true_and_known_when_they_said_it(seed):
    market, checked = open_market(seed), 0
    for message in every_message(open_workspace(seed)):
        if match := re.match(
            r"(\w+) closed at \$([\d,.]+) on (\w+ \d+, \d+)(?:, ([+-][\d.]+)% on the day)?\.", message.text
        ):
            symbol, close, written, percent = match.groups()
            day = datetime.strptime(written, "%B %d, %Y").date()
            *_, before, bar = market.bars(symbol, date(2025, 5, 1), day)
            assert bar.close == float(close.replace(",", ""))
            assert bar.start.date() == day < datetime.fromtimestamp(float(message.timestamp), market.now.tzinfo).date()
            if percent:
                assert abs(100 * (bar.close - before.close) / before.close - float(percent)) < 0.005001
            checked += 1
        if match := re.match(r"(\w+) (Q\d \d+): revenue \$([\d,.]+) million, EPS (-?[\d.]+)\.", message.text):
            quarter = market.statements(match[1], Period.QUARTERLY, 1)[0]
            assert quarter.label == match[2]
            assert quarter.revenue == round(float(match[3].replace(",", "")) * 1e6)
            assert quarter.eps == float(match[4])
            checked += 1
    assert checked > 5


def test_a_workspace_costs_less_than_a_millisecond_after_the_first_of_its_seed(untraced):
    open_workspace(7)
    assert least_s(lambda: open_workspace(7), looks=100) < 0.001
