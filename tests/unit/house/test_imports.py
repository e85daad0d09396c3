"""Imports point one way through the folders, and each heavy library has one owner. The two tables are the rules."""

from __future__ import annotations

from source_files import imported_modules, source_files

BASE = {
    "records",
    "goals",
    "protocol",
    "canonical",
    "conversations",
    "bounds",
    "patterns",
    "schemas",
    "retry_after",
    "config",
    "settings",
    "recipe",
    "errors",
    "suggestions",
    "seeds",
    "processes",
    "concurrency",
    "durable",
    "redact",
    "skyrl",
    "verdicts",
    "world",
}
BEFORE_EPISODES = BASE | {"tasks", "tools", "chat", "samplers"}
BEFORE_TRAINING = BEFORE_EPISODES | {"episodes", "algorithms", "learners"}

# What each part of mcprl may import, besides itself. A new part needs a row here, and a sentence in docs/design.md.
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "tasks": BASE,
    "tools": BASE,
    "servers": BASE,
    "chat": BASE,
    "samplers": BASE | {"chat"},
    "episodes": BEFORE_EPISODES,
    "algorithms": BASE,
    "learners": BASE | {"chat", "algorithms"},
    "planning": BASE | {"tasks"},
    # The same environment behind the interface of another trainer.
    "skyrl_gym": BEFORE_EPISODES | {"episodes"},
    "training": BEFORE_TRAINING,
    # The loop emits events through a protocol of its own; the command line plugs monitoring in. So training does not
    # appear on the right of itself, and monitoring does not appear on the right of training.
    "evaluation": BEFORE_TRAINING | {"servers", "training"},
    "doctor": BEFORE_TRAINING | {"planning", "training"},
    "dashboard": BASE | {"tasks", "training"},
    # Its template is a project of the user's: a server, and a test that plays tasks.
    "scaffold": BEFORE_EPISODES | {"episodes", "servers"},
    "monitoring": BEFORE_TRAINING | {"planning", "training", "evaluation", "doctor"},
    "cli": BEFORE_TRAINING
    | {"planning", "servers", "training", "evaluation", "doctor", "dashboard", "monitoring", "scaffold"},
    "__main__": {"cli"},
    "__init__": BASE,
}

# Who may import a heavy library: files, or folders that end in a slash.
OWNERS = {
    "mcp": ("tools/", "servers/", "scaffold/template/server.py"),
    "mcp_types": ("tools/", "servers/", "scaffold/template/server.py"),
    "vllm": ("samplers/vllm_worker.py",),
    "ray": ("episodes/workers.py", "skyrl_gym/trainer.py"),
    "tinker": ("skyrl/",),
    "skyrl": ("skyrl/serve.py", "skyrl_gym/trainer.py"),
    "skyrl_gym": ("skyrl_gym/",),
    "torch": (
        "algorithms/",
        "learners/",
        "samplers/transformers.py",
        "samplers/merged_adapters.py",
        "chat/grammars.py",
    ),
    "deepspeed": ("learners/zero3.py",),
    "peft": ("algorithms/", "learners/", "samplers/transformers.py"),
    "accelerate": ("algorithms/", "learners/", "samplers/transformers.py"),
    "transformers": ("chat/", "learners/", "samplers/transformers.py", "skyrl/serve.py"),
    "renderers": ("chat/",),
    "xgrammar": ("chat/grammars.py",),
    "duckdb": ("dashboard/",),
    "starlette": ("dashboard/", "servers/"),
    "wandb": ("monitoring/trackers/wandb_tracker.py",),
    "weave": ("monitoring/trackers/weave_tracker.py",),
    "tensorboard": ("monitoring/trackers/tensorboard_tracker.py",),
    "opentelemetry": ("monitoring/trackers/opentelemetry_tracker.py",),
    "bfcl_eval": ("servers/bfcl/", "evaluation/bfcl/"),
}


def test_every_part_of_the_package_has_a_row_in_the_table():
    parts = {file.part for file in source_files()}
    assert parts - set(MAY_IMPORT) == set()


def test_a_folder_imports_only_what_stands_before_it():
    wrong = [
        f"src/mcprl/{file.name}:{line} imports {module}"
        for file in source_files()
        for line, module in imported_modules(file)
        if module.startswith("mcprl.")
        if (target := module.split(".")[1]) in MAY_IMPORT
        if target != file.part and target not in MAY_IMPORT[file.part]
    ]
    assert wrong == []


def test_episodes_and_learners_do_not_reach_each_other_through_others():
    def reachable(part: str) -> set[str]:
        found, todo = set(), [part]
        while todo:
            for target in MAY_IMPORT[todo.pop()] - found:
                found.add(target)
                todo.append(target)
        return found

    assert "learners" not in reachable("episodes")
    assert "episodes" not in reachable("learners")


def test_a_heavy_library_is_imported_only_by_its_owner():
    wrong = [
        f"src/mcprl/{file.name}:{line} imports {module}"
        for file in source_files()
        for line, module in imported_modules(file)
        if (library := module.split(".")[0]) in OWNERS
        if not any(
            file.name == owner or (owner.endswith("/") and file.name.startswith(owner)) for owner in OWNERS[library]
        )
    ]
    assert wrong == []
