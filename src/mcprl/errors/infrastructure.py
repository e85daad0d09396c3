"""Errors of the world: a server, a process, a disk that failed."""

from __future__ import annotations

from mcprl.errors.base import InfrastructureError

__all__ = [
    "BreakerOpenError",
    "CallDeadlineError",
    "EngineLostError",
    "EngineStartError",
    "EpisodeDeadlineError",
    "GroupIncompleteError",
    "JudgeError",
    "LearnerLostError",
    "SamplerLostError",
    "SamplerStartError",
    "SandboxLostError",
    "ServerBusyError",
    "ServerFaultError",
    "ServerLostError",
    "ServerStartError",
    "StorageError",
    "ToolServerError",
    "WorkerLostError",
    "WorkersStartError",
]


class ToolServerError(InfrastructureError):
    """A tool server failed a call. `delivered` is False only where the call provably never reached its tool.

    `retry_after_s` is how long the server, or whoever stands before it, asked to be left alone.
    """

    def __init__(self, what: str, *, fix: str, delivered: bool = True, retry_after_s: float | None = None) -> None:
        super().__init__(what, fix=fix)
        self.delivered = delivered
        self.retry_after_s = retry_after_s


class ServerStartError(ToolServerError):
    """A tool server did not start or did not answer its handshake in time. Nothing was delivered."""

    code = "E-TOOL-010"

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what, fix=fix, delivered=False)


class ServerLostError(ToolServerError):
    """A tool server went away while a call was in flight."""

    code = "E-TOOL-011"


class CallDeadlineError(ToolServerError):
    """A tool call took longer than its deadline."""

    code = "E-TOOL-012"


class ServerFaultError(ToolServerError):
    """A tool server is alive but answered a call with a protocol error or a malformed result."""

    code = "E-TOOL-013"


class ServerBusyError(ToolServerError):
    """A tool server, or the gateway before it, asked to be called later: HTTP 429, or 503 with Retry-After."""

    code = "E-TOOL-014"


class BreakerOpenError(ToolServerError):
    """A tool server kept failing, is left alone for a while, and the call could wait no longer."""

    code = "E-TOOL-015"


class SandboxLostError(InfrastructureError):
    """The sandbox did not start, or was ended from outside. Says nothing about the code it was to run."""

    code = "E-SAND-010"


class SamplerStartError(InfrastructureError):
    """The sampler's process did not become healthy."""

    code = "E-SAMP-010"


class SamplerLostError(InfrastructureError):
    """The sampler went away, or answered with an error."""

    code = "E-SAMP-011"


class EpisodeDeadlineError(InfrastructureError):
    """An episode took longer than its deadline."""

    code = "E-EPIS-010"


class GroupIncompleteError(InfrastructureError):
    """A group lost more episodes to the infrastructure than it may run again."""

    code = "E-EPIS-011"


class JudgeError(InfrastructureError):
    """The judge could not be reached, was too slow, failed, or answered with something else than a grade;
    `retry_after_s` is how long it asked to be left alone."""

    code = "E-EPIS-012"

    def __init__(self, what: str, *, fix: str, retry_after_s: float | None = None) -> None:
        super().__init__(what, fix=fix)
        self.retry_after_s = retry_after_s


class LearnerLostError(InfrastructureError):
    """A process of the learner went away."""

    code = "E-LEARN-010"


class EngineStartError(InfrastructureError):
    """The engine's server did not become ready, or cannot be reached."""

    code = "E-ENG-010"


class EngineLostError(InfrastructureError):
    """The engine's server went away, forgot the model, failed a request, or was too slow with it."""

    code = "E-ENG-011"


class WorkersStartError(InfrastructureError):
    """The workers that play episodes could not be started."""

    code = "E-WORK-010"


class WorkerLostError(InfrastructureError):
    """A worker went away with the episodes that it was playing."""

    code = "E-WORK-011"


class StorageError(InfrastructureError):
    """The folder of a run could not be written or read: a full disk, a failing one, one that went away.

    What was durable before stays so: the run can be resumed.
    """

    code = "E-RUN-010"
