"""What all sections of the configuration share: strictness, and paths that are seen from the file that names them.

Relative paths of inputs are relative to the file that names them, and `mcprl:` begins that of a file which comes with
mcprl; a model is a path where it begins with `.` or `/`, and a hub name otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo

__all__ = ["FilePath", "ModelLocation", "Section"]

# Files that come with mcprl: `mcprl:market/train.jsonl`.
_SHIPPED = "mcprl:"
_DATA = Path(__file__).parent.parent / "data"


def _relative_to_file(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.startswith(_SHIPPED):
        return str(_DATA / value.removeprefix(_SHIPPED))
    context = cast("Mapping[str, Path]", info.context or {})
    folder = context.get("folder")
    return os.path.abspath(folder / value) if folder is not None and isinstance(value, str) else value


def _model_location(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.startswith((".", "/")):
        return str(_relative_to_file(value, info))
    return value


FilePath = Annotated[Path, BeforeValidator(_relative_to_file)]
ModelLocation = Annotated[str, BeforeValidator(_model_location)]


class Section(BaseModel):
    """A part of the configuration: no unknown keys, nothing changed later, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
