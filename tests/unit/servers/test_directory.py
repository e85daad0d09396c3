"""The demo directory: its data, its tools, and that the package which names it is cheap to import."""

import subprocess
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from mcp import Client

from mcprl.errors import BadValueError
from mcprl.servers import make_server
from mcprl.servers.directory import PEOPLE


def directory():
    # In memory, and entered inside each test: the SDK wants a client left by the task that entered it.
    return Client(make_server("directory"))


def test_names_are_distinct_and_no_city_has_two_time_zones():
    assert len({person["name"] for person in PEOPLE}) == len(PEOPLE) == 16
    assert len({person["city"] for person in PEOPLE}) == len({(p["city"], p["timezone"]) for p in PEOPLE})


@pytest.mark.parametrize("zone", sorted({person["timezone"] for person in PEOPLE}))
def test_no_time_zone_changes_with_the_season(zone):
    offsets = {datetime(year, month, 1, tzinfo=UTC).astimezone(ZoneInfo(zone)).utcoffset()
               for year in range(2024, 2037) for month in range(1, 13)}  # fmt: skip
    assert len(offsets) == 1


async def test_tools_are_described_briefly_and_marked_as_safe_to_repeat():
    async with directory() as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["find_person", "list_people"]
        for tool in tools:
            assert len(tool.description) < 60
            assert tool.annotations.read_only_hint
            assert tool.annotations.idempotent_hint


async def test_a_person_is_found_whatever_the_case():
    async with directory() as client:
        result = await client.call_tool("find_person", {"name": " ana "})
        assert result.structured_content == {"name": "Ana", "city": "Lima", "timezone": "America/Lima"}
        assert result.content[0].text == "Ana: Lima, America/Lima"


async def test_an_unknown_person_is_an_error_that_suggests_a_close_name_only():
    async with directory() as client:
        close = await client.call_tool("find_person", {"name": "Naoka"})
        assert close.is_error
        assert close.content[0].text.endswith("Nobody called 'Naoka' works here. Did you mean Naoko?")
        far = await client.call_tool("find_person", {"name": "Zzz"})
        assert far.content[0].text.endswith("Nobody called 'Zzz' works here.")


async def test_people_are_listed_by_city():
    async with directory() as client:
        result = await client.call_tool("list_people", {"city": "tokyo"})
        assert result.structured_content == {"names": ["Hiro", "Naoko"]}
        assert result.content[0].text == "Hiro, Naoko"
        assert (await client.call_tool("list_people", {"city": "Atlantis"})).is_error


def test_an_unknown_server_is_refused_with_a_suggestion():
    with pytest.raises(
        BadValueError, match=r"'directry' \(did you mean 'directory'\?\)\. Fix: choose one of: bfcl, directory"
    ):
        make_server("directry")


@pytest.mark.process
def test_naming_the_servers_does_not_import_the_sdk():
    script = "import sys, mcprl.servers; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
