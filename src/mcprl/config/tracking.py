"""Settings of who is told of a run besides its own folder. All of them are off unless a recipe names them."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from mcprl.config.section import Section

__all__ = ["OpenTelemetryConfig", "TrackingConfig", "WandbConfig", "WeaveConfig"]


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address begins with http:// or https:// and names a host")
    return value


_HttpUrl = Annotated[str, AfterValidator(_http_url)]


class WandbConfig(Section):
    """Weights & Biases: metrics, verdicts, a few episodes a step, and the trained weights as an artefact."""

    project: str = Field(min_length=1, description="Project in W&B.")
    entity: str | None = Field(default=None, description="User or team in W&B; null: the default one of the key.")
    mode: Literal["online", "offline"] = Field(
        default="online", description="offline: into the run's folder, for `wandb sync` to send later."
    )
    url: _HttpUrl | None = Field(
        default=None, description="Address of a W&B server of one's own; null: WANDB_BASE_URL, or W&B's cloud."
    )


class WeaveConfig(Section):
    """Weave: one trace an episode, with its turns and calls."""

    project: str = Field(
        pattern=r"^[^/\s]+(/[^/\s]+)?$", description="Project in Weave: entity/project, or a project of the key's user."
    )


class OpenTelemetryConfig(Section):
    """OpenTelemetry: spans of episodes, turns and calls, by OTLP over HTTP."""

    endpoint: _HttpUrl = Field(
        description="Where a collector takes spans, path included: http://127.0.0.1:4318/v1/traces."
    )


class TrackingConfig(Section):
    """Who is told of a run besides its own folder. A tracker that is down neither slows nor stops the run."""

    tensorboard: bool = Field(default=False, description="Write files for TensorBoard into the run's folder.")
    flush_s: float = Field(
        default=5.0, gt=0, description="Seconds after the run's end that trackers have to send what is left."
    )
    wandb: WandbConfig | None = Field(default=None, description="Weights & Biases; null: not told.")
    weave: WeaveConfig | None = Field(default=None, description="Weave; null: not told.")
    opentelemetry: OpenTelemetryConfig | None = Field(default=None, description="OpenTelemetry; null: not told.")

    @property
    def named(self) -> list[str]:
        """The trackers that are on: their settings, their extras and their processes have the same names."""
        asked = {
            "wandb": self.wandb is not None,
            "weave": self.weave is not None,
            "tensorboard": self.tensorboard,
            "opentelemetry": self.opentelemetry is not None,
        }
        return [name for name, is_asked in asked.items() if is_asked]
