"""Every error of mcprl: whose fault it is, a code, what happened, and the fix.

The tree has one branch for each kind of fault, because the kind decides what the run does next:

    McprlError
    ├── ConfigurationError   the user fixes a file or a flag; the run stops before, or as soon as, it matters
    │   ├── ConfigFileError          E-CONF-001   a configuration file cannot be read
    │   ├── UnknownKeyError          E-CONF-002   a key that no setting has
    │   ├── BadValueError            E-CONF-003   a setting with an invalid value
    │   ├── MissingExtraError        E-CONF-004   a part of mcprl that is not installed
    │   ├── UserCodeError            E-CODE-001   a function of your own, named in a recipe, does not work
    │   ├── TaskFileError            E-TASK-001   a task file, or one task in it, cannot be read
    │   ├── OtherWorldError          E-TASK-002   a task is about a world that the servers do not serve
    │   ├── ServerFileError          E-TOOL-001   an mcpServers file cannot be read
    │   ├── DuplicateToolError       E-TOOL-002   two servers offer a tool of the same name
    │   ├── UnknownToolError         E-TOOL-003   a task refers to a tool that no server lists
    │   ├── EmptyCatalogError        E-TOOL-004   the servers together offer no tool
    │   ├── BadToolSchemaError       E-TOOL-005   a server describes a tool's arguments with an invalid schema
    │   ├── ToolsChangedError        E-TOOL-006   a server's tools are no longer those that were pinned
    │   ├── MissingKeyError          E-TOOL-007   a server needs a key that is not set
    │   ├── BudgetExceededError      E-TOOL-008   the next call would exceed a server's budget
    │   ├── CassetteError            E-TOOL-009   a cassette cannot be read or written
    │   ├── ToolLimitError           E-LIMIT-001  a server lists or describes more than mcprl reads
    │   ├── SandboxMissingError      E-SAND-001   the machine lacks what a sandbox of code or of a server needs
    │   ├── UnbridgeableError        E-CHAT-001   the chat template cannot continue a conversation token by token
    │   ├── UnheldSchemaError        E-CHAT-002   a grammar cannot express a tool's schema
    │   ├── NoCallSyntaxError        E-CHAT-003   how the model's family writes calls is not known
    │   ├── GrammarError             E-CHAT-004   the grammar of the tools on offer does not compile
    │   ├── MissingLogprobError      E-SAMP-001   the sampler returned tokens without their logprobs
    │   ├── InadmissibleTokenError   E-SAMP-002   the sampler returned a token that the grammar does not admit
    │   ├── AlignmentError           E-LEARN-001  the learner scored tokens other than those sampled
    │   ├── ParityError              E-LEARN-002  sampler and learner disagree about the same tokens
    │   ├── NonFiniteError           E-LEARN-003  update after update had NaN or Inf in rewards, losses or gradients
    │   ├── UnsharableError          E-LEARN-004  the model's attention does not let trajectories share a prefix
    │   ├── UnfitEngineError         E-ENG-001    the engine cannot do what the run needs
    │   ├── NoRunError               E-RUN-001    not the folder of a run, or a run that cannot be continued
    │   ├── RunInUseError            E-RUN-002    another process has the run open
    │   ├── NoCheckpointError        E-RUN-003    none of the run's checkpoints can be used
    │   ├── OtherStateError          E-RUN-004    a checkpoint was saved with other settings
    │   └── NoRoomError              E-RUN-005    the disk has no room for the checkpoints of the run
    └── InfrastructureError  the world failed; the episode is played again and leaves no trace in the objective
        ├── ToolServerError          a tool server failed; tells whether the call may have reached it
        │   ├── ServerStartError     E-TOOL-010   a tool server did not start
        │   ├── ServerLostError      E-TOOL-011   a tool server went away during a call
        │   ├── CallDeadlineError    E-TOOL-012   a tool call took longer than its deadline
        │   ├── ServerFaultError     E-TOOL-013   a tool server answered a call with an internal error
        │   ├── ServerBusyError      E-TOOL-014   a tool server asked to be called later
        │   └── BreakerOpenError     E-TOOL-015   a tool server kept failing and is not called for a while
        ├── SandboxLostError         E-SAND-010   the sandbox failed, and the code in it is not to blame
        ├── SamplerStartError        E-SAMP-010   the sampler did not start
        ├── SamplerLostError         E-SAMP-011   the sampler went away or answered with an error
        ├── EpisodeDeadlineError     E-EPIS-010   an episode took longer than its deadline
        ├── GroupIncompleteError     E-EPIS-011   an episode was lost too often
        ├── JudgeError               E-EPIS-012   the judge gave no grade
        ├── RewardFunctionError      E-EPIS-013   a reward function failed, and the recipe says to lose the episode
        ├── LearnerLostError         E-LEARN-010  a process of the learner went away
        ├── EngineStartError         E-ENG-010    the engine's server did not become ready
        ├── EngineLostError          E-ENG-011    the engine's server went away or failed a request
        ├── WorkersStartError        E-WORK-010   the workers that play episodes did not start
        ├── WorkerLostError          E-WORK-011   a worker went away with its episodes
        ├── StorageError             E-RUN-010    the run's folder could not be written or read
        └── ResourceLimitError       E-RUN-011    the system refused a thread, a process or memory

A fault of the policy (a call of an unknown tool, bad arguments, text that does not parse) is not an exception: it
becomes an observation that the policy reads, and the episode is scored. `Fault.POLICY` marks that observation.
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

__all__ = [
    "AlignmentError",
    "BadToolSchemaError",
    "BadValueError",
    "BreakerOpenError",
    "BudgetExceededError",
    "CallDeadlineError",
    "CassetteError",
    "ConfigFileError",
    "ConfigurationError",
    "DuplicateToolError",
    "EmptyCatalogError",
    "EngineLostError",
    "EngineStartError",
    "EpisodeDeadlineError",
    "Fault",
    "GrammarError",
    "GroupIncompleteError",
    "InadmissibleTokenError",
    "InfrastructureError",
    "JudgeError",
    "LearnerLostError",
    "McprlError",
    "MissingExtraError",
    "MissingKeyError",
    "MissingLogprobError",
    "NoCallSyntaxError",
    "NoCheckpointError",
    "NoRoomError",
    "NoRunError",
    "NonFiniteError",
    "OtherStateError",
    "OtherWorldError",
    "ParityError",
    "ResourceLimitError",
    "RewardFunctionError",
    "RunInUseError",
    "SamplerLostError",
    "SamplerStartError",
    "SandboxLostError",
    "SandboxMissingError",
    "ServerBusyError",
    "ServerFaultError",
    "ServerFileError",
    "ServerLostError",
    "ServerStartError",
    "StorageError",
    "TaskFileError",
    "ToolLimitError",
    "ToolServerError",
    "ToolsChangedError",
    "UnbridgeableError",
    "UnfitEngineError",
    "UnheldSchemaError",
    "UnknownKeyError",
    "UnknownToolError",
    "UnsharableError",
    "UserCodeError",
    "WorkerLostError",
    "WorkersStartError",
    "did_you_mean",
]


class Fault(StrEnum):
    """Whose fault something is."""

    INFRASTRUCTURE = "infrastructure"
    POLICY = "policy"
    CONFIGURATION = "configuration"


class McprlError(Exception):
    """Base of all errors. `str(error)` is the whole sentence for a person: code, what happened, fix."""

    code: ClassVar[str]
    fault: ClassVar[Fault]

    def __init_subclass__(cls, code: str | None = None) -> None:
        if code is not None:
            cls.code = code

    def __init__(self, what: str, *, fix: str) -> None:
        # Imported here: compiling its patterns would double the time of `mcprl --help`.
        from mcprl.secrets import SECRETS

        # An error may quote what a server wrote, or a command with a key in it.
        self.what = SECRETS.redact(what)
        self.fix = SECRETS.redact(fix)
        super().__init__(self.what)

    def __str__(self) -> str:
        return f"{self.code} {self.what}. Fix: {self.fix}."

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled as it is, not made anew from `what` alone.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # pyright: ignore


class ConfigurationError(McprlError):
    """Something the user wrote, chose or installed is wrong."""

    fault = Fault.CONFIGURATION


class InfrastructureError(McprlError):
    """The world failed: a server, the network, the sampler's process. Nothing the policy did.

    One that ended an episode has the calls of each of its turns, as (tool, arguments); the last was under way.
    """

    fault = Fault.INFRASTRUCTURE
    turns: tuple[tuple[tuple[str, Mapping[str, Any]], ...], ...] = ()


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """The hint that follows a wrong name in a message, ` (did you mean 'steps'?)`; empty if none is close."""
    close = difflib.get_close_matches(written, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class ConfigFileError(ConfigurationError, code="E-CONF-001"):
    """A configuration file is missing, is not YAML, or does not hold a mapping.

    Causes: the path has a typo, or is relative to another folder; the YAML has a tab, a missing space after a colon, or
    an open quote; a duplicate key.
    Fix: correct the file at the line given in the message; `mcprl train RECIPE --dry-run` reads it without starting
    anything.
    Example: recipes/mine.yaml:12: duplicate key 'steps'. Fix: keep one of the two.
    """


class UnknownKeyError(ConfigurationError, code="E-CONF-002"):
    """A key that no setting has, most often a typo.

    Causes: a typo in a recipe or after `--set`; a key in the wrong section; a recipe for another version of mcprl.
    Fix: use the suggested name; `mcprl config explain` lists every setting.
    Example: --set training.step=3: unknown key 'training.step' (did you mean 'steps'?). Fix: rename it to 'steps'.
    """


class BadValueError(ConfigurationError, code="E-CONF-003"):
    """A setting has a value of the wrong type or outside its bounds.

    Causes: a number outside its bounds; a text instead of a number; a setting that is required and missing; two
    settings that exclude each other.
    Fix: give a value of the type and within the bounds that `mcprl config explain FIELD` shows.
    Example: recipes/mine.yaml:9: 'training.steps' is 0, should be at least 1. Fix: correct the value.
    """


class MissingExtraError(ConfigurationError, code="E-CONF-004"):
    """The configuration asks for a part of mcprl whose libraries are not installed.

    Causes: the recipe asks for an engine, a sharding or a trainer that the base installation leaves out; the command
    runs in an environment other than the one mcprl was installed into; a package that adds a command cannot be
    imported.
    Fix: install the extra given in the message into the environment that runs mcprl, or choose the alternative in the
    message; reinstall or remove a package that is broken.
    Example: learner.sharding is zero3, which needs DeepSpeed. Fix: install mcprl[deepspeed], or set learner.sharding to
    fsdp2.
    """


class UserCodeError(ConfigurationError, code="E-CODE-001"):
    """A function or class of your own, given in the recipe as `file.py:name`, cannot be used.

    Causes: the file or the name in it does not exist; importing the file fails; the function raises, or returns
    something other than what the documentation asks for.
    Fix: correct the code at the file and line in the message.
    Example: /home/ana/losses.py:7: NameError: name 'torhc' is not defined, in /home/ana/losses.py:sapo. Fix: correct
    the code at that place.
    """


class TaskFileError(ConfigurationError, code="E-TASK-001"):
    """A task file, or one task in it, cannot be read.

    Causes: the path has a typo; a line that is not JSON; a field that is missing or has the wrong type; a duplicate id.
    Fix: correct the entry at that place; `mcprl tasks validate FILE` finds all problems at once, `mcprl tasks schema`
    prints what a task may contain.
    Example: tasks.jsonl:4: not JSON (something follows the value). Fix: write one JSON object per line.
    """


class OtherWorldError(ConfigurationError, code="E-TASK-002"):
    """A task is about a world that the servers do not serve, so its answers would be wrong.

    Causes: tasks generated for one offline world and a server started with another; a live server with tasks that
    expect an offline one.
    Fix: start the server with the world of the tasks, or generate tasks for the world that it serves with `mcprl tasks
    generate`.
    Example: the answers of task d03 are true of the world market-7, but server 'fmp' serves the world market-1. Fix:
    start it with --world 7, or use tasks made for its world.
    """


class ServerFileError(ConfigurationError, code="E-TOOL-001"):
    """An mcpServers file cannot be read, or one of its entries is neither a command nor a URL.

    Causes: the path has a typo; the file is not JSON; an entry has neither `command` nor `url`; servers.settings has an
    entry for a server that is not in the file.
    Fix: correct the file at that place; `mcprl tools list` starts its servers and shows their tools.
    Example: servers.json is not JSON: Expecting ',' delimiter: line 7 column 5. Fix: correct the file at that place.
    """


class DuplicateToolError(ConfigurationError, code="E-TOOL-002"):
    """Two servers offer a tool of the same name, so a call could not be routed.

    Causes: two servers of the same kind; two servers that use the same tool name, such as `search`.
    Fix: disable one of the servers in the mcpServers file, or add the tool to servers.settings.NAME.deny of one of
    them.
    Example: servers 'fmp' and 'polygon' both offer a tool 'get_quote'. Fix: disable one of the servers in the
    mcpServers file, or deny one of the tools in its settings.
    """


class UnknownToolError(ConfigurationError, code="E-TOOL-003"):
    """A task refers to a tool that no server lists: it could never be solved, so the run does not start.

    Causes: a typo in the task; the server that offers the tool is disabled, missing from the mcpServers file, or
    renamed it; servers.settings.NAME.allow or deny leave the tool out.
    Fix: correct the task, or add the server that offers the tool; `mcprl tools list` shows what is on offer.
    Example: no server lists a tool 'tavily_filter', which task d03 needs (did you mean 'tavily_search'?). Fix: correct
    the task, or add a server that offers it.
    """


class EmptyCatalogError(ConfigurationError, code="E-TOOL-004"):
    """The servers together offer no tool: there would be nothing to learn.

    Causes: every server of the mcpServers file is disabled; allow and deny exclude every tool; a server that lists its
    tools only after a login.
    Fix: enable a server that lists tools, or loosen servers.settings.NAME.allow and deny; `mcprl tools list` shows what
    is left.
    Example: the servers together offer no tool. Fix: enable a server that lists tools in the mcpServers file.
    """


class BadToolSchemaError(ConfigurationError, code="E-TOOL-005"):
    """A server describes a tool's arguments with an invalid JSON schema.

    Causes: the server writes its schemas by hand; a `$ref` that leads nowhere; a keyword with a value of the wrong
    type.
    Fix: fix the schema in the server, exclude the tool with servers.settings.NAME.deny, or disable the server.
    Example: server 'fmp' describes the arguments of tool 'get_quote' with an invalid schema: 'strng' is not a type.
    Fix: fix the server, or disable it in the mcpServers file.
    """


class ToolsChangedError(ConfigurationError, code="E-TOOL-006"):
    """A server's tools, their descriptions or schemas differ from those pinned: the policy would be misled.

    Causes: the server was updated; someone changed a description, which the policy reads as an instruction; the pin
    file belongs to other servers.
    Fix: read the difference that the message shows; if it is wanted, run `mcprl tools pin` and start again.
    Example: pins.json pins no tools of server 'fmp'. Fix: review the server's tools, then run `mcprl tools pin`.
    """


class MissingKeyError(ConfigurationError, code="E-TOOL-007"):
    """A server needs a key that is neither in the environment nor in the key file.

    Causes: the key was set in another shell; servers.env_file is set to another file; its name has a typo.
    Fix: set the variable in the environment or as a line NAME=value in the key file, or disable the server that asks
    for it.
    Example: servers.json asks for keys that are not set: FMP_API_KEY (server 'fmp'). Fix: set each in the environment
    or as a line NAME=value in .env, or disable the server.
    """


class BudgetExceededError(ConfigurationError, code="E-TOOL-008"):
    """The next call would exceed what the run may spend on a server. The call is not made.

    Causes: the run is longer than planned; the policy learned to call more; failed calls were retried.
    Fix: raise servers.settings.NAME.budget, make the run shorter, or let servers.settings.NAME.cache_s answer repeated
    calls; then `mcprl resume`.
    Example: the next call would exceed the budget of server 'fmp': the run has used 250 of 250 calls. Fix: raise
    servers.settings.fmp.budget.calls, or shorten the run.
    """


class CassetteError(ConfigurationError, code="E-TOOL-009"):
    """A cassette cannot be read or written, or does not hold recorded calls.

    Causes: the path has a typo; replay of a cassette that was never recorded; a cassette of another version of mcprl;
    the folder is missing or not writable.
    Fix: give an existing cassette, or record one with servers.cassette_mode=record; `mcprl cassette verify` checks one.
    Example: cassette market.cassette does not exist. Fix: record one with servers.cassette_mode=record, or make one
    with `mcprl cassette import`.
    """


class ToolLimitError(ConfigurationError, code="E-LIMIT-001"):
    """A server lists more tools, or describes one with a larger schema, than mcprl reads.

    Causes: an `enum` with tens of thousands of values; references that multiply when they are expanded; a server that
    offers thousands of tools; a hostile server.
    Fix: exclude the tool with servers.settings.NAME.deny, or list the tools that the tasks need in
    servers.settings.NAME.allow; if only the grammar is too large, set sampling.constrain to off.
    Example: server 'fmp' describes the arguments of tool 'get_quote' with a schema that has an enum of more than 10000
    values. Fix: exclude the tool with servers.settings.fmp.deny, or ask its author for a smaller schema.
    """


class SandboxMissingError(ConfigurationError, code="E-SAND-001"):
    """The machine lacks what a sandbox needs: bubblewrap, namespaces, seccomp, or a known processor.

    Causes: bubblewrap is not installed; a container or kernel that forbids user namespaces; a system other than Linux.
    Fix: install bubblewrap and let it make namespaces, as the message explains. Without a sandbox, allow_unsafe runs
    code that you trust, and a server that you trust needs no `sandbox`.
    Example: bubblewrap is not installed (no bwrap on PATH), but the Python sandbox needs it. Fix: apt-get install
    bubblewrap, or start the server with allow_unsafe if you trust the code.
    """


class NoRunError(ConfigurationError, code="E-RUN-001"):
    """A folder is not the folder of a run, has no such log, or its run cannot be continued.

    Causes: the path has a typo; the folder holds all runs rather than one; the run has finished its steps; the run has
    no log with that name.
    Fix: `mcprl runs list` shows the runs; a finished run continues with more steps, `--set training.steps=N`.
    Example: outputs/hello is not the folder of a run: it has no config.yaml. Fix: give the folder of a run.
    """


class RunInUseError(ConfigurationError, code="E-RUN-002"):
    """Another process has the run open: two writers would corrupt its folder.

    Causes: the run is still being trained in another terminal or job; it was resumed twice; a process that was
    suspended still holds its lock.
    Fix: wait until that process has ended, or end it; that releases the lock.
    Example: outputs/hello-cpu is in use by process 4711. Fix: wait until that process has ended, or end it.
    """


class NoCheckpointError(ConfigurationError, code="E-RUN-003"):
    """None of a run's checkpoints is intact, or the requested one is missing or damaged.

    Causes: `--from` gives a step that was not saved, or whose checkpoint was removed since; a disk damaged the files.
    Fix: give one of the steps that the message lists, or leave `--from` out; training.keep_checkpoints sets how many
    are kept.
    Example: there is no checkpoint of step 7; the run has those of steps: 4, 8. Fix: give one of these;
    training.keep_checkpoints sets how many are kept.
    """


class OtherStateError(ConfigurationError, code="E-RUN-004"):
    """A checkpoint was saved with settings that differ from those of the run that loads it.

    Causes: the model, the sharding or the number of processes has changed; a checkpoint from another version of mcprl.
    Fix: resume with the settings given in the message, or start a new run.
    Example: the state in outputs/a/checkpoints/step-00008 was saved by 2 processes with fsdp2, but is to be loaded by
    one process. Fix: resume with learner.processes=2 and learner.sharding=fsdp2.
    """


class NoRoomError(ConfigurationError, code="E-RUN-005"):
    """The disk has no room for the checkpoints that the run would keep.

    Causes: a full disk; all weights are trained, so that each checkpoint is as large as the model and its optimiser;
    many checkpoints are kept.
    Fix: free space, set training.outputs to a larger disk, or lower training.keep_checkpoints.
    Example: a checkpoint takes 12.4 GB; 4 are kept at most, and one more while it is written (62.0 GB); 31.0 GB are
    free. Fix: free space, set training.outputs to a larger disk, or lower training.keep_checkpoints.
    """


class ToolServerError(InfrastructureError):
    """A tool server failed a call. `delivered` is False only if the call provably never reached its tool.

    `retry_after_s` is how long the server or its gateway asked to wait.
    """

    def __init__(self, what: str, *, fix: str, delivered: bool = True, retry_after_s: float | None = None) -> None:
        super().__init__(what, fix=fix)
        self.delivered = delivered
        self.retry_after_s = retry_after_s


class ServerStartError(ToolServerError, code="E-TOOL-010"):
    """A tool server did not start or did not answer its handshake in time. Nothing was delivered.

    Causes: its program is not installed; a port that is taken; a key that the server refuses; a start that takes longer
    than servers.settings.NAME.start_deadline_s.
    Fix: read the end of its log, `mcprl logs RUN NAME`, or run its command by hand; `mcprl tools list` starts the
    servers alone.
    Example: server 'fmp' did not start: command 'npx' not found. Fix: install it, or correct 'command' in the
    mcpServers file.
    """

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what, fix=fix, delivered=False)


class ServerLostError(ToolServerError, code="E-TOOL-011"):
    """A tool server went away while a call was in flight.

    Causes: the server crashed or was killed for its memory; the network went away; the server was restarted.
    Fix: read its log, `mcprl logs RUN NAME`; the episode is played again, so an occasional one does no harm.
    Example: server 'fmp' went away during a call of 'get_quote' (its process ended with exit code 137). Fix: see its
    log outputs/a/logs/fmp.log.
    """


class CallDeadlineError(ToolServerError, code="E-TOOL-012"):
    """A tool call took longer than its deadline.

    Causes: a slow upstream; a tool that hangs; more concurrent calls than the server can handle.
    Fix: raise servers.settings.NAME.call_deadline_s, lower episodes.max_concurrent, or set
    servers.settings.NAME.replicas.
    Example: server 'fmp' did not finish a call of 'get_quote' within 30 s. Fix: raise call_deadline_s of the server, or
    see its log outputs/a/logs/fmp.log.
    """


class ServerFaultError(ToolServerError, code="E-TOOL-013"):
    """A tool server is alive but answered a call with a protocol error or a malformed result.

    Causes: a fault in the server; an upstream that is down behind a server that is up; a rule in
    servers.settings.NAME.errors that classifies a text as an infrastructure fault.
    Fix: read its log and fix the server; the call itself fits the tool's schema.
    Example: server 'fmp' answered a call of 'get_quote' with an internal error: upstream unavailable. Fix: fix the
    reported error; servers.settings.NAME.errors classifies such a text as an infrastructure fault.
    """


class ServerBusyError(ToolServerError, code="E-TOOL-014"):
    """A tool server, or its gateway, asked to be called later: HTTP 429, or 503 with Retry-After.

    Causes: more calls per second than the API plan allows; other users of the same key; many concurrent episodes.
    Fix: set servers.settings.NAME.rate to what the server allows, or servers.settings.NAME.cache_s for calls that
    repeat.
    Example: server 'fmp' asked to be called later (HTTP 429). Fix: set servers.settings.NAME.rate to what the server
    allows.
    """


class BreakerOpenError(ToolServerError, code="E-TOOL-015"):
    """A tool server kept failing, is not called for a while, and the call could wait no longer.

    Causes: the server is down, or every call fails; servers.settings.NAME.call_deadline_s is shorter than the 5 s after
    which it is tried again.
    Fix: read its log and fix the first failure.
    Example: server 'fmp' failed 5 calls in a row, and its breaker stayed open for as long as a call may wait. Fix: read
    the server's log; it is tried again 5 s after each failure.
    """


class SandboxLostError(InfrastructureError, code="E-SAND-010"):
    """The sandbox did not start, or was killed. The code in it is not to blame.

    Causes: the machine ran out of memory; bubblewrap was removed or forbidden since, or its process was killed.
    Fix: check that the machine has free memory and that `bwrap --ro-bind / / true` works.
    Example: a worker of the Python sandbox ended before it was ready. Fix: check that the machine has free memory and
    that bubblewrap still works: run `bwrap --ro-bind / / true`.
    """


class SamplerStartError(InfrastructureError, code="E-SAMP-010"):
    """The sampler's process did not become healthy.

    Causes: too little memory for the model and its cache; an incomplete model folder; a version of vLLM that does not
    support the architecture; a slow disk.
    Fix: read its log, `mcprl logs RUN vllm`; lower sampling.vllm.max_sequences or model.context_tokens.
    Example: vLLM was not healthy after 1800 s. Fix: read its log at outputs/a/logs/vllm.log.
    """


class SamplerLostError(InfrastructureError, code="E-SAMP-011"):
    """The sampler went away, or answered with an error.

    Causes: the sampler ran out of memory; a turn took longer than episodes.deadline_s; its process was killed.
    Fix: read its log, `mcprl logs RUN vllm`; it is restarted automatically, and the episodes are played again.
    Example: vLLM did not answer /inference/v1/generate (ReadError). Fix: read its log at outputs/a/logs/vllm.log.
    """


class EpisodeDeadlineError(InfrastructureError, code="E-EPIS-010"):
    """An episode took longer than its deadline.

    Causes: a tool server that answers slowly; a sampler with more concurrent episodes than it can handle; a deadline
    too short for the number of turns.
    Fix: find out what is slow with `mcprl tools stats RUN`, lower episodes.max_concurrent, or raise
    episodes.deadline_s.
    Example: episode 3 of task d03 took longer than 600 s, 540 s of it waiting for one answer. Fix: find out whether a
    tool server or the sampler is slow, or raise episodes.deadline_s.
    """


class GroupIncompleteError(InfrastructureError, code="E-EPIS-011"):
    """An episode was lost to the infrastructure in each of its attempts.

    Causes: the same fault of a server or the sampler, again and again; the message ends with the last one.
    Fix: fix the cause in the message, then `mcprl resume`.
    Example: episode 3 of task d03 was lost 5 times, last to E-TOOL-011 server 'fmp' ended during a call. Fix: fix that
    cause, then resume the run.
    """


class JudgeError(InfrastructureError, code="E-EPIS-012"):
    """The judge could not be reached, was too slow, failed, or did not answer with a grade.

    Causes: the endpoint is down or busy; a model that does not follow the answer format, or takes longer than 60 s.
    Fix: check that rewards.judge.url answers and that its model follows instructions; use a faster judge.
    Example: the judge gave no grade within 60 s. Fix: use a faster judge, or lower its load.
    """

    def __init__(self, what: str, *, fix: str, retry_after_s: float | None = None) -> None:
        """`retry_after_s` is how long it asked to wait."""
        super().__init__(what, fix=fix)
        self.retry_after_s = retry_after_s


class RewardFunctionError(InfrastructureError, code="E-EPIS-013"):
    """A reward function failed or missed its deadline, and the recipe says `on_error: lose_episode`.

    Causes: a service that the function asks is down or slow; a mistake in the function that some episodes meet.
    Fix: correct the code at the file and line in the message, or raise the function's deadline_s.
    Example: /home/ana/rewards.py:9: TimeoutError: no answer, in /home/ana/rewards.py:graded (task meet-ana, 3 turns).
    Fix: correct the code there.
    """


class LearnerLostError(InfrastructureError, code="E-LEARN-010"):
    """A process of the learner went away.

    Causes: a process was killed for its memory; a GPU failed; another process of the learner raised an error first.
    Fix: read its log, `mcprl logs RUN`; lower learner.microbatch, or shard the model over more processes; then `mcprl
    resume`.
    Example: process 1 of 2 of the learner ended with exit code -9; the end of its log: loading weights. Fix: it was
    killed, probably for lack of memory: lower learner.microbatch, or see outputs/a/logs/learner-1.log.
    """


class EngineStartError(InfrastructureError, code="E-ENG-010"):
    """The engine's server did not become ready, or cannot be reached.

    Causes: skyrl.python is not an environment with SkyRL; too little memory; a port or a key that is refused; another
    version of SkyRL.
    Fix: read its log, `mcprl logs RUN skyrl`; correct skyrl.python or skyrl.url.
    Example: SkyRL's server exited with code 1 while starting. Fix: read its whole log at outputs/a/logs/skyrl.log.
    """


class EngineLostError(InfrastructureError, code="E-ENG-011"):
    """The engine's server went away, lost the model, failed a request, or took too long.

    Causes: the server ran out of memory or was restarted; the network went away; a request took longer than 30 minutes.
    Fix: read the server's log, `mcprl logs RUN skyrl`; then `mcprl resume`.
    Example: the server at http://127.0.0.1:8001 failed at an update: the engine ended. Fix: read the server's log
    (logs/skyrl.log in the run's folder, if mcprl started the server).
    """


class WorkersStartError(InfrastructureError, code="E-WORK-010"):
    """The workers that play episodes could not be started.

    Causes: the cluster is not up, or has too few free cores; a node whose Python or mcprl differs from this one.
    Fix: start the cluster with `ray start --head`, correct workers.address, or lower workers.count; `ray status` shows
    what is free.
    Example: worker 3 did not start within 120 s. Fix: check whether the cluster has a free core for it (ray status), or
    lower workers.count.
    """


class WorkerLostError(InfrastructureError, code="E-WORK-011"):
    """A worker went away with the episodes that it was playing.

    Causes: a node went away or was preempted; a worker ran out of memory.
    Fix: see the log of that worker and the memory of its node; other workers play its episodes again.
    Example: 3 workers in a row died while they played episode 2 of task d03, the last of them: the node went away. Fix:
    see the log of that worker and the memory of its node.
    """


class StorageError(InfrastructureError, code="E-RUN-010"):
    """The folder of a run could not be written or read: a full, failing or missing disk.

    Everything saved before is intact: the run can be resumed.

    Causes: a full disk or quota; a disk that was unmounted, is read-only or fails; no write permission.
    Fix: free space, or give this user write permission; then `mcprl resume`.
    Example: writing outputs/a/metrics.jsonl failed: No space left on device. Fix: free space on that disk, or raise the
    quota; then continue with `mcprl resume`.
    """


class ResourceLimitError(InfrastructureError, code="E-RUN-011"):
    """The system refused mcprl a thread, a process or memory.

    Everything saved before is intact: the run can be resumed.

    Causes: a limit on memory, threads or processes (ulimit -v, ulimit -u, a container's limits); other programs on the
    machine.
    Fix: raise the limit, or lower episodes.max_concurrent, workers.count or learner.microbatch; then `mcprl resume`.
    Example: the system refuses to start a thread. Fix: raise the limits on memory, threads and processes (ulimit -v,
    ulimit -u, the container's), or lower episodes.max_concurrent; then `mcprl resume`.
    """

    FIX = (
        "raise the limits on memory, threads and processes (ulimit -v, ulimit -u, the container's), or lower "
        "episodes.max_concurrent; then `mcprl resume`"
    )


class UnbridgeableError(ConfigurationError, code="E-CHAT-001"):
    """The model's chat template cannot continue a conversation without changing the tokens already sampled.

    Causes: a template that drops or rewrites earlier turns; a template without a place for tool results; model.renderer
    is set to a family other than the model's.
    Fix: set model.renderer to the model's family (qwen3, llama-3, …), to chatml for a ChatML model, or to template.
    Example: renderer QwenRenderer cannot show a tool's result. Fix: set model.renderer to the model's family, to chatml
    for a ChatML model, or to template.
    """


class UnheldSchemaError(ConfigurationError, code="E-CHAT-002"):
    """A grammar cannot express a tool's schema, so it could admit a call that the tool refuses.

    Causes: a schema with keywords that no grammar can express, such as `not` or `uniqueItems`; a name with characters
    that the family cannot write in a call.
    Fix: add the tool to sampling.loose_tools, whose arguments are then checked when it is called, simplify its schema,
    or set sampling.constrain to off.
    Example: tool 'get_quote' has a schema that a grammar cannot express: uniqueItems. Fix: add get_quote to
    sampling.loose_tools (its arguments are still checked when it is called), or set sampling.constrain to off.
    """


class NoCallSyntaxError(ConfigurationError, code="E-CHAT-003"):
    """Calls should follow a grammar, but how the model's family writes them is not known.

    Causes: a model of a family that mcprl has no call syntax for; a model whose family was not recognised.
    Fix: set sampling.constrain to off, or train a model of one of the families that the message lists.
    Example: sampling.constrain is on, but no grammar is known for how mistral writes calls. Fix: set sampling.constrain
    to off, or train a model of one of these families: chatml, qwen3, llama-3.
    """


class GrammarError(ConfigurationError, code="E-CHAT-004"):
    """The grammar of the tools on offer does not compile.

    Causes: a pattern in a tool's schema that the grammar compiler does not support; a schema with endless recursion.
    Fix: fix the tool's schema, exclude the tool with servers.settings.NAME.deny, or set sampling.constrain to off.
    Example: the grammar of the tools on offer does not compile: unknown escape in pattern. Fix: fix the tool's schema,
    exclude the tool, or set sampling.constrain to off.
    """


class MissingLogprobError(ConfigurationError, code="E-SAMP-001"):
    """The sampler returned tokens without logprobs: the policy ratio would be undefined.

    Causes: a version of the sampler that mcprl was not made for; a proxy in between that drops unknown fields.
    Fix: use the version of vLLM that mcprl pins, without a proxy in between.
    Example: vLLM returned no logprobs. Fix: use vLLM 0.32 or later.
    """


class InadmissibleTokenError(ConfigurationError, code="E-SAMP-002"):
    """The sampler returned a token that the grammar does not admit: the two have different grammars or tokenizers.

    Causes: the sampler and the learner have different versions of xgrammar; a tokenizer that differs from the model's;
    several end-of-text tokens that are not declared.
    Fix: give sampler and learner the same model folder, tools and xgrammar.
    Example: vLLM ended a turn with token 151643, which is not one of the stop tokens that it was given. Fix: use the
    same end-of-text token in the model's tokenizer, in its generation_config.json and in model.renderer.
    """


class AlignmentError(ConfigurationError, code="E-LEARN-001"):
    """The learner scored tokens other than those that the sampler emitted.

    Causes: a bug in mcprl, or in a custom sampler or learner; trajectories sampled under a grammar that the learner was
    not given.
    Fix: report it with the trajectories of the step; a custom learner needs the grammars of the model.
    Example: only 99.12% of the tokens to learn from are the tokens that were sampled. Fix: report this with the
    trajectories of the step: it is a bug in mcprl.
    """


class ParityError(ConfigurationError, code="E-LEARN-002"):
    """Sampler and learner give the same tokens different probabilities before any update.

    Causes: different precisions in sampler and learner; different weights or tokenizers under one name; kernels that
    differ more than the bound allows.
    Fix: use the same model and dtype in both, measure with `mcprl parity RECIPE`, and raise learner.max_parity_error
    only for bfloat16.
    Example: before any update, sampler and learner differ by 0.35 nats per token on the same 431 tokens (at most 3.1);
    learner.max_parity_error is 0.2. Fix: use the same model and dtype in both, or raise learner.max_parity_error for
    bfloat16.
    """


class NonFiniteError(ConfigurationError, code="E-LEARN-003"):
    """Update after update had NaN or Inf in a reward, logprob, loss or gradient. All were rolled back.

    Causes: a learning rate that is too high; half precision that overflows; a reward function that returns NaN; damaged
    weights.
    Fix: look at the episodes in the message, lower learner.learning_rate, or set model.dtype to float32; then `mcprl
    resume` from an earlier checkpoint.
    Example: 3 updates in a row hit NaN or Inf, the last one: a gradient is not a finite number after task d03; the
    weights are those from before these updates. Fix: look at the episodes in the message; lower learner.learning_rate,
    or set model.dtype to float32.
    """


class UnsharableError(ConfigurationError, code="E-LEARN-004"):
    """The model's attention does not let trajectories share a prefix.

    Causes: a model with sliding-window, linear or recurrent layers.
    Fix: set learner.share_prefix to false: the same update, without the saving.
    Example: some/model has layers of sliding_attention; trajectories can share a prefix only if every layer attends to
    all earlier tokens. Fix: set learner.share_prefix to false.
    """


class UnfitEngineError(ConfigurationError, code="E-ENG-001"):
    """The engine or its client cannot do what the run needs.

    Causes: a version of tinker or SkyRL that mcprl was not made for; a LoRA rank or number of adapters that the server
    does not allow; a key that it refuses; an adapter that it did not save itself.
    Fix: use what the message suggests: another version, a lower learner.lora_rank, the key in TINKER_API_KEY, or
    engine=transformers.
    Example: the server samples from weights that it saved itself, not from outputs/a/adapter. Fix: use the adapter with
    another engine: --set engine=transformers.
    """
