"""The chat workspace of a world: channels with a history, plus the posts of one episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time
from functools import lru_cache

from mcprl_market.world.companies import WORDS, invent_people
from mcprl_market.world.draws import Draws
from mcprl_market.world.facts import Channel, ChatMessage, Period
from mcprl_market.world.ledger import Ledger
from mcprl_market.world.market import open_market
from mcprl_market.world.prices import NOW, TODAY, TRADING_DAYS, day_in_words, moment, percent_change
from mcprl_market.world.texts import dollars, millions

_CHANNELS: Sequence[tuple[str, str]] = WORDS["channels"]
# Channels without market topics. No message occurs twice in a channel.
_SMALL_TALK: Mapping[str, Sequence[str]] = WORDS["small_talk"]
_REMARKS: Sequence[str] = WORDS["remarks"]
_ID_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_NUM_PEOPLE = 12
_NUM_DAYS = 5


def _make_id(prefix: str, draws: Draws) -> str:
    """Return an id such as "U7K2M0Q9ZT1"."""
    return prefix + "".join(draws.choice(_ID_LETTERS) for _ in range(10))


def make_channels(seed: int) -> tuple[Channel, ...]:
    return tuple(
        Channel(id=_make_id("C", Draws(seed, "channel", name)), name=name, purpose=purpose)
        for name, purpose in _CHANNELS
    )


def make_history(ledger: Ledger, channels: Sequence[Channel]) -> Mapping[str, tuple[ChatMessage, ...]]:
    """Return the messages of each channel by its id, oldest first, all before the world's current time."""
    people = [name.lower().replace(" ", ".") for name in invent_people(Draws(ledger.seed, "people"), _NUM_PEOPLE)]
    return {channel.id: tuple(_messages(ledger, channel, people)) for channel in channels}


def _messages(ledger: Ledger, channel: Channel, people: Sequence[str]) -> list[ChatMessage]:
    draws = Draws(ledger.seed, "history", channel.name)
    small_talk = _SMALL_TALK.get(channel.name)
    times = sorted(_working_time(draws) for _ in range(draws.integer(5, 12 if small_talk else 15)))
    texts = (
        draws.some(small_talk, len(times))
        if small_talk
        else [_market_talk(ledger, draws, channel.name, at) for at in times]
    )
    return [
        ChatMessage(
            channel_id=channel.id,
            user=draws.choice(people),
            text=text,
            # The serial number increases, so two messages of the same second stay in order.
            timestamp=f"{int(at.timestamp())}.{number * 1000 + draws.integer(1, 9) * 100:06d}",
        )
        for number, (at, text) in enumerate(zip(times, texts, strict=True))
    ]


def _working_time(draws: Draws) -> datetime:
    day = draws.choice(TRADING_DAYS[-_NUM_DAYS:])
    last_hour = NOW.hour - 1 if day == TODAY else 17
    return moment(day, time(draws.integer(8, last_hour), draws.integer(0, 59), draws.integer(0, 59)))


def _market_talk(ledger: Ledger, draws: Draws, channel: str, at: datetime) -> str:
    """Return a remark on a company. What it says is true at the time `at`."""
    company = draws.choice(ledger.companies)
    symbol = company.symbol
    if channel == "earnings-watch":
        quarter = ledger.reports(symbol, Period.QUARTERLY)[0]
        return f"{symbol} {quarter.label}: revenue {millions(quarter.revenue)}, EPS {quarter.eps:.2f}."
    (_, before), (day, last) = [
        (day, prices) for day, prices in ledger.daily(symbol, TRADING_DAYS[-12], TODAY) if day < at.date()
    ][-2:]
    percent = percent_change(last.close, before.close)
    if channel == "alerts":
        return f"{symbol} closed at {dollars(last.close / 100)} on {day_in_words(day)}, {percent:+.2f}% on the day."
    remark = draws.choice(_REMARKS)
    return remark.format(of=company, close=dollars(last.close / 100), percent=percent, day=day_in_words(day))


_NOW_S = int(NOW.timestamp())


@lru_cache(maxsize=16)
def _seeded(seed: int) -> tuple[tuple[Channel, ...], Mapping[str, tuple[ChatMessage, ...]], str]:
    """Return the channels, history and bot with which every workspace of a seed begins. They are never changed."""
    channels = make_channels(seed)
    return channels, make_history(open_market(seed), channels), _make_id("U", Draws(seed, "bot"))


class Workspace:
    """The chat of one episode: the history of its seed, shared by all, plus its own posts, which no other episode sees.

    >>> workspace = open_workspace(7)
    >>> general = workspace.channels()[0]
    >>> workspace.post(general.id, "hello") == workspace.history(general.id, 1)[0]
    True
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._channels, self._history, self._bot = _seeded(seed)
        self._posts: list[ChatMessage] = []

    @property
    def posts(self) -> tuple[ChatMessage, ...]:
        """Return the posts of this episode, oldest first."""
        return tuple(self._posts)

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def post(self, channel_id: str, text: str) -> ChatMessage:
        """Add a message of the bot after all others. Raises KeyError for an unknown id."""
        self._history[channel_id]
        # The episode's clock advances one second per post, so timestamps are unique and in order.
        timestamp = f"{_NOW_S + len(self._posts)}.000100"
        message = ChatMessage(channel_id=channel_id, user=self._bot, text=text, timestamp=timestamp)
        self._posts.append(message)
        return message

    def history(self, channel_id: str, limit: int) -> tuple[ChatMessage, ...]:
        """Return the latest messages of a channel, newest first. Raises KeyError for an unknown id."""
        own = tuple(message for message in self._posts if message.channel_id == channel_id)
        return tuple(reversed(self._history[channel_id] + own))[: max(0, limit)]


def open_workspace(seed: int) -> Workspace:
    """Return a new workspace for one episode."""
    return Workspace(seed)
