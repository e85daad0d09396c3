"""Errors that the user mends in a file, a flag, or what is installed: settings, tasks, tools and runs."""

from __future__ import annotations

from mcprl.errors.base import ConfigurationError

__all__ = [
    "BadToolSchemaError",
    "BadValueError",
    "BudgetExceededError",
    "CassetteError",
    "ConfigFileError",
    "DuplicateToolError",
    "EmptyCatalogError",
    "MissingExtraError",
    "MissingKeyError",
    "NoCheckpointError",
    "NoRoomError",
    "NoRunError",
    "OtherStateError",
    "OtherWorldError",
    "RunInUseError",
    "SandboxMissingError",
    "ServerFileError",
    "TaskFileError",
    "ToolLimitError",
    "ToolsChangedError",
    "UnknownKeyError",
    "UnknownToolError",
]


class ConfigFileError(ConfigurationError):
    """A configuration file is missing, is not YAML, or does not hold a mapping.

    Causes: the path has a typing error, or is relative to another folder; the YAML has a tab, a missing space after a
    colon, or an open quote; a key stands twice.
    Fix: correct the file at the line that the sentence names; `mcprl train RECIPE --dry-run` reads it without starting
    anything.
    Example: recipes/mine.yaml:12: key 'steps' stands twice. Fix: keep one of the two.
    """

    code = "E-CONF-001"


class UnknownKeyError(ConfigurationError):
    """A key that no setting has, most often a typing error.

    Causes: a typing error in a recipe or after `--set`; a key in the wrong section; a recipe of another version of
    mcprl.
    Fix: use the name that is suggested; `mcprl config explain` lists every setting.
    Example: --set training.step=3: unknown key 'training.step' (did you mean 'steps'?). Fix: rename it to 'steps'.
    """

    code = "E-CONF-002"


class BadValueError(ConfigurationError):
    """A setting has a value of the wrong type or outside its bounds.

    Causes: a number outside its bounds; a text where a number belongs; a setting that is required and missing; two
    settings that exclude each other.
    Fix: give a value of the type that `mcprl config explain FIELD` names, within its bounds.
    Example: recipes/mine.yaml:9: 'training.steps' is 0, should be at least 1. Fix: correct the value.
    """

    code = "E-CONF-003"


class MissingExtraError(ConfigurationError):
    """The configuration asks for a part of mcprl whose libraries are not installed.

    Causes: the recipe asks for an engine, a sharding or a trainer that the base installation leaves out; the command
    runs in another environment than the one installed into.
    Fix: install the extra that the sentence names into the environment that runs mcprl, or choose the alternative that
    it names.
    Example: learner.sharding is zero3, which needs DeepSpeed. Fix: install mcprl[deepspeed], or use fsdp2.
    """

    code = "E-CONF-004"


class TaskFileError(ConfigurationError):
    """A task file, or one task in it, cannot be read.

    Causes: the path has a typing error; a line that is no JSON; a field that is missing or has another type; the same
    id twice.
    Fix: correct the entry at the place that is named; `mcprl tasks validate FILE` finds all problems at once, `mcprl
    tasks schema` prints what a task may hold.
    Example: tasks.jsonl:4: not JSON (something follows the value). Fix: write one JSON object a line.
    """

    code = "E-TASK-001"


class OtherWorldError(ConfigurationError):
    """A task's answers are true of another world than the servers serve.

    Causes: tasks generated for one offline world and a server started with another; a live server where the tasks
    expect an offline one.
    Fix: start the server with the world of the tasks, or generate tasks for the world that it serves with `mcprl tasks
    generate`.
    Example: the answers of task d03 are true of the world market-7, but server 'fmp' serves the world market-1. Fix:
    start it with --world 7, or use tasks made for its world.
    """

    code = "E-TASK-002"


class ServerFileError(ConfigurationError):
    """An mcpServers file cannot be read, or one of its entries is neither a command nor a URL.

    Causes: the path has a typing error; the file is no JSON; an entry with neither `command` nor `url`;
    servers.settings names a server that the file does not.
    Fix: correct the file at the place that is named; `mcprl tools list` starts its servers and shows their tools.
    Example: servers.json is not JSON: Expecting ',' delimiter: line 7 column 5. Fix: correct the file at that place.
    """

    code = "E-TOOL-001"


class DuplicateToolError(ConfigurationError):
    """Two servers offer a tool of the same name, so a call could not be routed.

    Causes: two servers of the same kind; two servers that happen to call a tool alike, such as `search`.
    Fix: disable one of the servers in the mcpServers file, or add the tool to servers.settings.NAME.deny of one of
    them.
    Example: servers 'fmp' and 'polygon' both offer a tool 'get_quote'. Fix: disable one of the servers in the
    mcpServers file, or deny one of the tools in its settings.
    """

    code = "E-TOOL-002"


class UnknownToolError(ConfigurationError):
    """A task names a tool that no server lists: it could never be solved, so the run does not start.

    Causes: a typing error in the task; the server that offers the tool is disabled, missing from the mcpServers file,
    or renamed it; servers.settings.NAME.allow or deny leave the tool out.
    Fix: correct the task, or add the server that offers the tool; `mcprl tools list` shows what is on offer.
    Example: no server lists a tool 'tavily_filter', which task d03 needs (did you mean 'tavily_search'?). Fix: correct
    the task, or add a server that offers it.
    """

    code = "E-TOOL-003"


class EmptyCatalogError(ConfigurationError):
    """The servers together offer no tool: there would be nothing to learn.

    Causes: every server of the mcpServers file is disabled; allow and deny leave nothing over; a server that lists its
    tools only after it was signed in to.
    Fix: enable a server that lists tools, or loosen servers.settings.NAME.allow and deny; `mcprl tools list` shows what
    is left.
    Example: the servers together offer no tool. Fix: enable a server that lists tools in the mcpServers file.
    """

    code = "E-TOOL-004"


class BadToolSchemaError(ConfigurationError):
    """A server describes a tool's arguments with something that is no valid JSON schema.

    Causes: the server writes its schemas by hand; a `$ref` that leads nowhere; a keyword with a value of the wrong
    type.
    Fix: mend the schema in the server, or leave the tool out with servers.settings.NAME.deny, or the server by
    disabling it.
    Example: server 'fmp' describes the arguments of tool 'get_quote' with an invalid schema: 'strng' is not a type.
    Fix: mend the server, or disable it in the mcpServers file.
    """

    code = "E-TOOL-005"


class ToolsChangedError(ConfigurationError):
    """A server's tools, their descriptions or schemas differ from those pinned: the policy would be misled.

    Causes: the server was updated; someone changed a description, which the policy reads as an instruction; the file of
    pins is that of other servers.
    Fix: read the difference that the sentence shows; where it is wanted, run `mcprl tools pin` and start again.
    Example: pins.json pins no tools of server 'fmp'. Fix: review the server's tools, then run mcprl tools pin.
    """

    code = "E-TOOL-006"


class MissingKeyError(ConfigurationError):
    """A server needs a key that is neither in the environment nor in the file of keys.

    Causes: the key was set in another shell; the file of keys lies elsewhere than servers.env_file says; its name has a
    typing error.
    Fix: set the variable in the environment or as a line NAME=value in the file of keys, or disable the server that
    asks for it.
    Example: servers.json asks for keys that are not set: FMP_API_KEY (server 'fmp'). Fix: set each in the environment
    or as a line NAME=value in .env, or disable the server.
    """

    code = "E-TOOL-007"


class BudgetExceededError(ConfigurationError):
    """The next call would exceed what the run may spend on a server. The call is not made.

    Causes: the run is longer than the budget was reckoned for; the policy learnt to call more; calls that failed were
    made again.
    Fix: raise servers.settings.NAME.budget, make the run shorter, or let servers.settings.NAME.cache_s answer repeated
    calls; then `mcprl resume` goes on.
    Example: the next call would exceed the budget of server 'fmp': the run has used 250 of 250 calls. Fix: raise
    servers.settings.fmp.budget.calls, or make a shorter run.
    """

    code = "E-TOOL-008"


class CassetteError(ConfigurationError):
    """A cassette cannot be read or written, or holds something else than recorded calls.

    Causes: the path has a typing error; replay of a cassette that was never recorded; a cassette of another version of
    mcprl; the folder is missing or may not be written.
    Fix: name a cassette that is there, or record one with servers.cassette_mode=record; `mcprl cassette verify` tells
    whether one is whole.
    Example: there is no cassette market.cassette. Fix: record one with servers.cassette_mode=record, or make one with
    `mcprl cassette import`.
    """

    code = "E-TOOL-009"


class ToolLimitError(ConfigurationError):
    """A server lists more tools, or describes one with a larger schema, than is read of any server.

    Causes: an `enum` with tens of thousands of values; references that multiply when they are written out; a server
    that offers thousands of tools; a server that means to stop whoever connects to it.
    Fix: leave the tool out with servers.settings.NAME.deny, or name the tools that the tasks need in
    servers.settings.NAME.allow; for a schema that only a grammar is too small for, set sampling.constrain to off.
    Example: server 'fmp' describes the arguments of tool 'get_quote' with a schema that has an enum of more than 10000
    values. Fix: leave the tool out with servers.settings.fmp.deny, or ask its author for a smaller schema.
    """

    code = "E-LIMIT-001"


class SandboxMissingError(ConfigurationError):
    """The machine lacks what the sandbox is built of: bubblewrap, namespaces, seccomp, or a known processor.

    Causes: bubblewrap is not installed; a container or kernel that forbids user namespaces; a system other than Linux.
    Fix: install bubblewrap and let it make namespaces, as the sentence says for this machine; allow_unsafe runs code
    without a sandbox, for code that you trust.
    Example: bubblewrap is not installed (no bwrap on PATH), and the Python sandbox is built with it. Fix: apt-get
    install bubblewrap, or start the server with allow_unsafe for code that you trust.
    """

    code = "E-SAND-001"


class NoRunError(ConfigurationError):
    """A folder is not that of a run, has no log of that name, or its run cannot be continued as asked.

    Causes: the path has a typing error; the folder is that of all runs rather than of one; the run has done all its
    steps; the run has no log of that name.
    Fix: `mcprl runs list` shows the runs there are; a finished run goes on with more steps, `--set training.steps=N`.
    Example: outputs/hello is no folder of a run: it has no config.yaml. Fix: name a folder of a run.
    """

    code = "E-RUN-001"


class RunInUseError(ConfigurationError):
    """Another process has the run open: two that write to one folder would spoil it.

    Causes: the run is still being trained in another terminal or job; it was resumed twice; a process that was stopped,
    not ended, still holds its lock.
    Fix: wait until the process that is named has ended, or end it; the lock goes with it.
    Example: outputs/hello-cpu is in use by process 4711. Fix: wait until that process has ended, or end it.
    """

    code = "E-RUN-002"


class NoCheckpointError(ConfigurationError):
    """None of a run's checkpoints is whole, or not the one that was asked for.

    Causes: `--from` names a step that was not saved, or whose checkpoint was dropped since; a disk damaged the files.
    Fix: give one of the steps that the sentence lists, or leave `--from` out; training.keep_checkpoints sets how many
    are kept.
    Example: there is no checkpoint of step 7, but of 4, 8. Fix: give one of these; training.keep_checkpoints sets how
    many are kept.
    """

    code = "E-RUN-003"


class OtherStateError(ConfigurationError):
    """A checkpoint was saved under other settings than those it is to be loaded under.

    Causes: another model, sharding or number of processes than before; a checkpoint of another version of mcprl.
    Fix: resume with the settings that the sentence names, or start a new run.
    Example: the state in outputs/a/checkpoints/step-00008 was saved by 2 processes with fsdp2, and is to be loaded by 1
    process. Fix: resume with learner.processes 2 and learner.sharding fsdp2.
    """

    code = "E-RUN-004"


class NoRoomError(ConfigurationError):
    """The disk has no room for the checkpoints that the run would keep.

    Causes: a full disk; all weights are trained, so that each checkpoint is as large as the model and its optimiser;
    many checkpoints are kept.
    Fix: free space, set training.outputs to a larger disk, or lower training.keep_checkpoints.
    Example: a checkpoint takes 12.4 GB; 4 are kept at most, and one more while it is written (62.0 GB); 31.0 GB are
    free. Fix: free space, set training.outputs to a larger disk, or lower keep_checkpoints.
    """

    code = "E-RUN-005"
