"""The states that a server keeps for episodes: who shares one, who does not, and when one is dropped."""

from contextlib import asynccontextmanager

import pytest
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer

from mcprl.protocol import EPISODE, EPISODE_LIVES_S, EPISODE_SCOPE, SCOPE
from mcprl.servers.episode_state import EPISODIC, EpisodeStates

DEFAULT_LIFE_S = 3600


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Notebooks:
    """A server, called in memory, whose one tool writes a word into the episode's list and gives back the list."""

    def __init__(self, client, states, clock):
        self.states = states
        self.clock = clock
        self._client = client

    async def write(self, word, **meta):
        result = await self._client.call_tool("write", {"word": word}, meta=meta or None)
        return result.content[0].text

    async def write_in(self, episode, word, lives_s=None):
        lives = {} if lives_s is None else {EPISODE_LIVES_S: lives_s}
        return await self.write(word, **{EPISODE: episode}, **lives)


@asynccontextmanager
async def notebooks():
    clock = Clock()
    states = EpisodeStates(list, clock)
    server = MCPServer("notebooks")

    def write(word: str, context: Context) -> str:
        state = states.of(context)
        state.append(word)
        return " ".join(state)

    server.add_tool(write, meta=EPISODIC)
    async with Client(server) as client:
        yield Notebooks(client, states, clock)


async def test_the_mark_of_an_episodic_tool_reaches_the_client():
    async with notebooks() as books:
        (tool,) = (await books._client.list_tools()).tools
        assert tool.meta[SCOPE] == EPISODE_SCOPE


async def test_each_episode_has_a_fresh_state_and_keeps_it():
    async with notebooks() as books:
        assert await books.write_in("a", "one") == "one"
        assert await books.write_in("b", "two") == "two"
        assert await books.write_in("a", "three") == "one three"
        assert len(books.states) == 2


async def test_callers_that_name_no_episode_share_one_state_which_no_episode_sees():
    async with notebooks() as books:
        assert await books.write("one") == "one"
        assert await books.write_in("a", "two") == "two"
        assert await books.write("three", other="metadata") == "one three"
        assert len(books.states) == 1


@pytest.mark.parametrize("no_name", [7, None, ["a"], True])
async def test_what_is_no_text_names_no_episode(no_name):
    async with notebooks() as books:
        await books.write("one")
        assert await books.write("two", **{EPISODE: no_name}) == "one two"


async def test_the_shared_state_lives_as_long_as_the_server():
    async with notebooks() as books:
        await books.write("one")
        books.clock.now += 1000 * DEFAULT_LIFE_S
        await books.write_in("a", "x")
        assert await books.write("two") == "one two"


@pytest.mark.parametrize("lives_s", [60, 60.5])
async def test_a_state_lives_as_long_as_its_episode_may_and_not_longer(lives_s):
    async with notebooks() as books:
        await books.write_in("a", "one", lives_s)
        books.clock.now += lives_s - 0.25
        assert await books.write_in("a", "two", lives_s) == "one two"
        books.clock.now += 0.25
        assert await books.write_in("a", "three", lives_s) == "three"


async def test_without_a_life_given_a_state_lives_for_an_hour():
    async with notebooks() as books:
        await books.write_in("a", "one")
        books.clock.now += DEFAULT_LIFE_S - 1
        assert await books.write_in("a", "two") == "one two"
        books.clock.now += 1
        assert await books.write_in("a", "three") == "three"


async def test_states_of_episodes_that_are_over_are_dropped_when_others_call():
    async with notebooks() as books:
        for number in range(50):
            await books.write_in(f"short-{number}", "x", 10)
        await books.write_in("long", "one", 1000)
        assert len(books.states) == 51
        books.clock.now += 10
        assert await books.write_in("long", "two", 1000) == "one two"
        assert len(books.states) == 1
