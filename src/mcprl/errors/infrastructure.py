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
    "ResourceLimitError",
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
    """A tool server did not start or did not answer its handshake in time. Nothing was delivered.

    Causes: its program is not installed; a port that is taken; a key that the server refuses; a start that takes longer
    than servers.settings.NAME.start_deadline_s.
    Fix: read the end of its log, `mcprl logs RUN NAME`, or run its command by hand; `mcprl tools list` starts the
    servers alone.
    Example: server 'fmp' did not start: there is no program 'npx'. Fix: install it, or correct 'command' in the
    mcpServers file.
    """

    code = "E-TOOL-010"

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what, fix=fix, delivered=False)


class ServerLostError(ToolServerError):
    """A tool server went away while a call was in flight.

    Causes: the server crashed or was killed for its memory; the network went away; the server was restarted.
    Fix: read its log, `mcprl logs RUN NAME`; the episode is run again, so now and then one is no harm.
    Example: server 'fmp' went away during a call of 'get_quote' (its process ended with exit code 137). Fix: see
    its log outputs/a/logs/fmp.log.
    """

    code = "E-TOOL-011"


class CallDeadlineError(ToolServerError):
    """A tool call took longer than its deadline.

    Causes: a slow upstream; a tool that waits for something that never comes; more calls at once than the server can
    do.
    Fix: raise servers.settings.NAME.call_deadline_s, lower episodes.max_concurrent, or set
    servers.settings.NAME.replicas.
    Example: server 'fmp' did not finish a call of 'get_quote' within 30 s. Fix: raise call_deadline_s of the server, or
    see its log outputs/a/logs/fmp.log.
    """

    code = "E-TOOL-012"


class ServerFaultError(ToolServerError):
    """A tool server is alive but answered a call with a protocol error or a malformed result.

    Causes: a fault in the server; an upstream that is down behind a server that is up; a rule in
    servers.settings.NAME.errors that calls a text a fault of the infrastructure.
    Fix: read its log and mend the server; the call itself fits the tool's schema.
    Example: server 'fmp' answered a call of 'get_quote' with an error of its own: upstream unavailable. Fix: mend what
    it says; servers.settings.NAME.errors calls such a text an infrastructure fault.
    """

    code = "E-TOOL-013"


class ServerBusyError(ToolServerError):
    """A tool server, or the gateway before it, asked to be called later: HTTP 429, or 503 with Retry-After.

    Causes: more calls in a second than the plan of the key allows; other users of the same key; many episodes at once.
    Fix: set servers.settings.NAME.rate to what the server allows, or servers.settings.NAME.cache_s for calls that
    repeat.
    Example: server 'fmp' asked to be called later (HTTP 429). Fix: set servers.settings.NAME.rate to what the server
    allows.
    """

    code = "E-TOOL-014"


class BreakerOpenError(ToolServerError):
    """A tool server kept failing, is left alone for a while, and the call could wait no longer.

    Causes: the server is down, or every call of it fails; the rest of servers.settings.NAME.breaker is longer than a
    call may wait.
    Fix: read its log and mend what failed first; servers.settings.NAME.breaker says when it is tried again.
    Example: server 'fmp' failed 5 calls in a row and is left alone; a call waited for it as long as it may. Fix: see
    the server's log; servers.settings.fmp.breaker says when it is tried again.
    """

    code = "E-TOOL-015"


class SandboxLostError(InfrastructureError):
    """The sandbox did not start, or was ended from outside. Says nothing about the code it was to run.

    Causes: the machine ran out of memory; bubblewrap was removed or forbidden since, or its process was killed.
    Fix: see that the machine has memory left and that `bwrap --ro-bind / / true` works.
    Example: a worker of the Python sandbox ended before it was ready. Fix: see that the machine has memory left and
    that bubblewrap still works: run `bwrap --ro-bind / / true`.
    """

    code = "E-SAND-010"


class SamplerStartError(InfrastructureError):
    """The sampler's process did not become healthy.

    Causes: too little memory for the model and its cache; a model folder that is not whole; a version of vLLM that does
    not know the architecture; a slow disk.
    Fix: read its log, `mcprl logs RUN vllm`; lower sampling.vllm.max_sequences or model.context_tokens, or raise
    sampling.vllm.start_deadline_s.
    Example: vLLM was not healthy after 600 s. Fix: read its log at outputs/a/logs/vllm.log, or raise
    sampling.vllm.start_deadline_s.
    """

    code = "E-SAMP-010"


class SamplerLostError(InfrastructureError):
    """The sampler went away, or answered with an error.

    Causes: the sampler ran out of memory; a turn took longer than sampling.request_deadline_s; its process was killed.
    Fix: read its log, `mcprl logs RUN vllm`; it is started again by itself, and the episodes are run again.
    Example: vLLM did not answer /inference/v1/generate (ReadError). Fix: read its log at outputs/a/logs/vllm.log.
    """

    code = "E-SAMP-011"


class EpisodeDeadlineError(InfrastructureError):
    """An episode took longer than its deadline.

    Causes: a tool server that answers slowly; a sampler with more episodes at once than it has room for; a deadline too
    short for the number of turns.
    Fix: look at what answers so slowly, with `mcprl tools stats RUN`, lower episodes.max_concurrent, or raise
    episodes.deadline_s.
    Example: episode 3 of task d03 took longer than 600 s, 540 s of it waiting for one answer. Fix: look at what answers
    so slowly, a tool server or the sampler; or raise episodes.deadline_s.
    """

    code = "E-EPIS-010"


class GroupIncompleteError(InfrastructureError):
    """An episode was lost to the infrastructure as often as it may be run.

    Causes: the same fault of a server or the sampler, again and again; the sentence ends with the last one.
    Fix: fix the cause that is named, then `mcprl resume`; episodes.max_attempts sets how often an episode is run again.
    Example: episode 3 of task d03 was lost 3 times, last to E-TOOL-011 server 'fmp' ended during a call. Fix: fix that
    cause; episodes.max_attempts sets how often an episode is run again.
    """

    code = "E-EPIS-011"


class JudgeError(InfrastructureError):
    """The judge could not be reached, was too slow, failed, or answered with something else than a grade.

    Causes: the endpoint is down or busy; a model that does not answer in the form it was asked for; a deadline that is
    too short.
    Fix: see that rewards.judge.url answers, that its model follows instructions, or raise rewards.judge.deadline_s.
    Example: the judge gave no grade within 60 s. Fix: raise rewards.judge.deadline_s.
    """

    code = "E-EPIS-012"

    def __init__(self, what: str, *, fix: str, retry_after_s: float | None = None) -> None:
        """`retry_after_s` is how long it asked to be left alone."""
        super().__init__(what, fix=fix)
        self.retry_after_s = retry_after_s


class LearnerLostError(InfrastructureError):
    """A process of the learner went away.

    Causes: a process was killed for its memory; a GPU failed; another process of the learner raised an error first.
    Fix: read its log, `mcprl logs RUN`; lower learner.microbatch, or share the model among more processes; then `mcprl
    resume`.
    Example: process 1 of 2 of the learner ended with exit code -9; the end of its log: loading weights. Fix: it was
    killed, most often for lack of memory: lower learner.microbatch, or see outputs/a/logs/learner-1.log.
    """

    code = "E-LEARN-010"


class EngineStartError(InfrastructureError):
    """The engine's server did not become ready, or cannot be reached.

    Causes: skyrl.python names no environment with SkyRL; too little memory; a port or a key that is refused; another
    version of SkyRL.
    Fix: read its log, `mcprl logs RUN skyrl`; correct skyrl.python or skyrl.url, or raise skyrl.start_deadline_s.
    Example: SkyRL's server left with exit code 1 at its start. Fix: read its whole log at outputs/a/logs/skyrl.log.
    """

    code = "E-ENG-010"


class EngineLostError(InfrastructureError):
    """The engine's server went away, forgot the model, failed a request, or was too slow with it.

    Causes: the server ran out of memory or was restarted; the network went away; a request took longer than
    skyrl.request_deadline_s.
    Fix: read the server's log, `mcprl logs RUN skyrl`; then `mcprl resume`.
    Example: the server at http://127.0.0.1:8001 failed at an update: the engine ended. Fix: read the server's log
    (logs/skyrl.log in the run's folder, where it was started here).
    """

    code = "E-ENG-011"


class WorkersStartError(InfrastructureError):
    """The workers that play episodes could not be started.

    Causes: the cluster is not up, or has too few free cores; a node with another Python or mcprl than this one.
    Fix: start the cluster with `ray start --head`, correct workers.address, or lower workers.count; `ray status` shows
    what is free.
    Example: worker 3 did not start within 120 s. Fix: see whether the cluster has 1 free cores for it (ray status), or
    lower workers.count.
    """

    code = "E-WORK-010"


class WorkerLostError(InfrastructureError):
    """A worker went away with the episodes that it was playing.

    Causes: a node went away or was taken back; a worker ran out of memory.
    Fix: see the log of that worker and the memory of its node; its episodes are played again elsewhere.
    Example: 3 workers in a row died while they played episode 2 of task d03, the last of them: the node went away. Fix:
    see the log of that worker and the memory of its node.
    """

    code = "E-WORK-011"


class StorageError(InfrastructureError):
    """The folder of a run could not be written or read: a full disk, a failing one, one that went away.

    What was durable before stays so: the run can be resumed.

    Causes: a full disk or quota; a disk that was unmounted, is read-only or fails; no right to write there.
    Fix: free space or let this user write there, then go on with `mcprl resume`.
    Example: writing outputs/a/metrics.jsonl failed: No space left on device. Fix: free space on that disk, or raise the
    quota; then go on with `mcprl resume`.
    """

    code = "E-RUN-010"


class ResourceLimitError(InfrastructureError):
    """The system refused mcprl a thread, a process or memory.

    What was durable before stays so: the run can be resumed.

    Causes: a limit on memory, threads or processes (ulimit -v, ulimit -u, a container's limits); other programs on the
    machine.
    Fix: raise the limit, or lower episodes.max_concurrent, workers.count or learner.microbatch; then go on with
    `mcprl resume`.
    Example: the system refuses to start a thread. Fix: raise the limits on memory, threads and processes (ulimit -v,
    ulimit -u, the container's), or lower episodes.max_concurrent; then go on with `mcprl resume`.
    """

    code = "E-RUN-011"
    FIX = (
        "raise the limits on memory, threads and processes (ulimit -v, ulimit -u, the container's), or lower "
        "episodes.max_concurrent; then go on with `mcprl resume`"
    )
