"""Schemas that others wrote, out of packages that are installed: requests of public APIs, protocol messages, settings.

Nothing of them is kept here; each is made or read when a test asks for it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema_specifications
import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from typing_extensions import is_typeddict

from mcprl.servers import make_server
from mcprl.tools import ServerSpec, Toolbox

SHIPPED_SERVERS = ("fmp", "polygon", "tavily", "slack", "python")
MODELS = ("mcp_types", "mcp.shared.auth", "mcprl.config", "renderers.configs")


async def real_world_schemas(log_dir: Path) -> dict[str, dict[str, Any]]:
    """Schemas of objects by their names, each different from all others."""
    found = {name: schema async for name, schema in _shipped_tools(log_dir)}
    for module in MODELS:
        found |= _models(importlib.import_module(module))
    found |= dict(_params(pytest.importorskip("openai.types")))
    found |= dict(_meta_schemas())
    distinct = {json.dumps(schema): name for name, schema in found.items() if schema.get("type") == "object"}
    return {name: json.loads(text) for text, name in distinct.items()}


async def _shipped_tools(log_dir: Path):
    specs = [ServerSpec(name=name, make=partial(make_server, name, world=7)) for name in SHIPPED_SERVERS]
    async with Toolbox(specs, log_dir=log_dir) as toolbox:
        for tool in toolbox.catalog:
            yield f"{tool.server}.{tool.name}", dict(tool.parameters)


def _models(module: ModuleType) -> dict[str, dict[str, Any]]:
    """The schemas of a module's pydantic models."""
    models = inspect.getmembers(module, lambda member: inspect.isclass(member) and issubclass(member, BaseModel))
    return {f"{module.__name__}.{name}": model.model_json_schema() for name, model in models if model is not BaseModel}


def _params(package: ModuleType) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas of what requests take that create something."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("_create_params"):
            continue
        for name, member in vars(importlib.import_module(found.name)).items():
            if name.endswith("Params") and is_typeddict(member) and member.__module__ == found.name:
                try:
                    yield f"{found.name}.{name}", TypeAdapter(member).json_schema()
                except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema):
                    continue  # it takes open files, which JSON does not have


def _meta_schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas of schemas, of all drafts: recursive, and full of what a grammar cannot hold."""
    for resource in jsonschema_specifications.REGISTRY:
        contents = jsonschema_specifications.REGISTRY.contents(resource)
        yield resource, {**contents, "type": "object"}  # most say: an object or a boolean


def features_of(schema: Mapping[str, Any]) -> set[str]:
    """What a schema makes use of."""
    keywords: set[str] = set()
    pending: list[Any] = [schema]
    optional = nested = False
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            keywords |= part.keys()
            properties = part.get("properties", {})
            optional |= not set(properties) <= set(part.get("required", ()))
            nested |= part is not schema and part.get("type") == "object"
        pending += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
    named = {"enum", "const", "items", "anyOf", "oneOf", "allOf", "$ref", "pattern", "format", "minimum", "minLength"}
    return (keywords & named) | {word for word, used in (("optional", optional), ("nested", nested)) if used}
