"""A demo MCP server: a small, fixed office directory with the city and time zone of each colleague."""

from __future__ import annotations

import difflib
from typing import Annotated, TypedDict

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations


class Person(TypedDict):
    """One colleague."""

    name: str
    city: str
    timezone: str


def _person(name: str, city: str, timezone: str) -> Person:
    return {"name": name, "city": city, "timezone": timezone}


# Time zones without daylight saving time, so that no answer depends on today's date.
PEOPLE: tuple[Person, ...] = (
    _person("Ana", "Lima", "America/Lima"),
    _person("Bola", "Lagos", "Africa/Lagos"),
    _person("Chen", "Singapore", "Asia/Singapore"),
    _person("Divya", "Kolkata", "Asia/Kolkata"),
    _person("Emeka", "Lagos", "Africa/Lagos"),
    _person("Fatima", "Dubai", "Asia/Dubai"),
    _person("Grace", "Nairobi", "Africa/Nairobi"),
    _person("Hiro", "Tokyo", "Asia/Tokyo"),
    _person("Ivan", "Phoenix", "America/Phoenix"),
    _person("Jorge", "Bogota", "America/Bogota"),
    _person("Kayla", "Brisbane", "Australia/Brisbane"),
    _person("Luz", "Bogota", "America/Bogota"),
    _person("Mei", "Singapore", "Asia/Singapore"),
    _person("Naoko", "Tokyo", "Asia/Tokyo"),
    _person("Omar", "Dubai", "Asia/Dubai"),
    _person("Priya", "Kolkata", "Asia/Kolkata"),
)

_BY_NAME = {person["name"].casefold(): person for person in PEOPLE}
_CITIES = {person["city"].casefold(): person["city"] for person in PEOPLE}
_READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


class _Names(TypedDict):
    names: list[str]


def _result(structured: Person | _Names, text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=dict(structured))


def find_person(name: str) -> Annotated[CallToolResult, Person]:
    """City and time zone of a colleague."""
    person = _BY_NAME.get(name.strip().casefold())
    if person is None:
        close = difflib.get_close_matches(name.strip().casefold(), list(_BY_NAME), n=1)
        hint = f" Did you mean {_BY_NAME[close[0]]['name']}?" if close else ""
        raise ToolError(f"Nobody called {name!r} works here.{hint}")
    return _result(person, f"{person['name']}: {person['city']}, {person['timezone']}")


def list_people(city: str) -> Annotated[CallToolResult, _Names]:
    """Names of the colleagues in a city."""
    known = _CITIES.get(city.strip().casefold())
    if known is None:
        raise ToolError(f"There is no office in {city!r}.")
    names = [person["name"] for person in PEOPLE if person["city"] == known]
    return _result({"names": names}, ", ".join(names))


def make_server() -> MCPServer:
    """Create the directory's MCP server without starting it."""
    # WARNING: one line per request would hide the important lines in the logs of a run.
    server = MCPServer("directory", version="1", log_level="WARNING")
    for tool in (find_person, list_people):
        server.add_tool(tool, annotations=_READ_ONLY)
    return server
