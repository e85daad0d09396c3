"""Imports point one way through the folders, and each heavy library has one owner. The two tables are the rules."""

from __future__ import annotations

from source_files import imported_modules, source_files

BASE = {
    "bounds",
    "records",
    "goals",
    "protocol",
    "conversations",
    "schemas",
    "config",
    "recipe",
    "errors",
    "seeds",
    "placement",
    "processes",
    "progress",
    "concurrency",
    "files",
    "functions",
    "secrets",
    "skyrl",
    "verdicts",
}
BEFORE_EPISODES = BASE | {"tasks", "tools", "chat", "grammar", "samplers"}
BEFORE_RUNS = BEFORE_EPISODES | {"episodes", "learning"}
BEFORE_TRAINING = BEFORE_RUNS | {"runs", "checks"}
PACKAGES = {"mcprl_market", "mcprl_dashboard", "mcprl_skyrl_gym", "mcprl_suites", "mcprl_synthesis", "mcprl_agents"}

# What each part of mcprl may import, besides itself. A new part needs a row here, and a sentence in docs/design.md.
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "tasks": BASE,
    "tools": BASE,
    "servers": BASE,
    "chat": BASE,
    "grammar": BASE | {"chat"},
    "samplers": BASE | {"chat", "grammar"},
    "episodes": BEFORE_EPISODES,
    "learning": BASE | {"chat", "grammar"},
    # What is on disk is read without torch.
    "runs": BASE | {"tasks", "tools", "episodes"},
    # The doctor plays a sample of episodes as training does, and health is judged while training runs.
    "checks": BEFORE_RUNS | {"runs", "training"},
    # The loop emits events through a protocol of its own; the command line plugs the console and trackers in.
    "training": BEFORE_TRAINING,
    "evaluation": BEFORE_TRAINING | {"training"},
    "tracking": BASE | {"tasks", "tools", "runs", "training"},
    # Its template is a project of the user's: a server, and a test that plays tasks.
    "scaffold": BEFORE_EPISODES | {"episodes", "servers"},
    "cli": BEFORE_TRAINING | {"api", "servers", "training", "evaluation", "tracking", "scaffold"},
    "__main__": {"cli"},
    "api": BASE | {"training", "evaluation", "runs", "tracking"},
    "__init__": BASE | {"api", "episodes", "runs", "tasks", "tools"},
    "mcprl_market": BASE | {"tasks", "tools", "servers", "cli"},
    "mcprl_dashboard": BASE | {"tasks", "runs"},
    "mcprl_skyrl_gym": BEFORE_EPISODES | {"episodes"},
    "mcprl_suites": BEFORE_TRAINING | {"evaluation", "servers", "cli"},
    # Not the market: it must not know the world that it explores.
    "mcprl_agents": BEFORE_EPISODES | {"episodes"},
    "mcprl_synthesis": BASE | {"tasks", "tools", "servers", "episodes", "scaffold", "evaluation", "cli"},
}

# Who may import a heavy library: files, or folders that end in a slash.
OWNERS = {
    "mcp": ("tools/", "servers/", "scaffold/template/server.py", "mcprl_market/", "mcprl_suites/", "mcprl_agents/"),
    "mcp_types": (
        "tools/",
        "servers/",
        "scaffold/template/server.py",
        "mcprl_market/",
        "mcprl_suites/",
        "mcprl_agents/",
    ),
    "vllm": ("samplers/vllm_worker.py", "samplers/vllm_transfer.py"),
    "ray": ("episodes/ray_workers.py", "mcprl_skyrl_gym/trainer.py"),
    "tinker": ("skyrl/",),
    "skyrl": ("skyrl/serve.py", "mcprl_skyrl_gym/trainer.py"),
    "skyrl_gym": ("mcprl_skyrl_gym/",),
    "torch": (
        "learning/",
        "samplers/transformers.py",
        "samplers/vllm_worker.py",
        "samplers/vllm_transfer.py",
        "grammar/masks.py",
    ),
    "deepspeed": ("learning/sharding.py",),
    "peft": ("learning/", "samplers/transformers.py"),
    "accelerate": ("learning/", "samplers/transformers.py"),
    "transformers": (
        "chat/",
        "grammar/masks.py",
        "learning/",
        "samplers/transformers.py",
        "samplers/skyrl.py",
        "skyrl/serve.py",
    ),
    "renderers": ("chat/", "grammar/calls.py"),
    "xgrammar": ("grammar/masks.py",),
    "duckdb": ("mcprl_dashboard/",),
    "starlette": ("mcprl_dashboard/", "mcprl_agents/", "servers/"),
    "wandb": ("tracking/wandb.py",),
    "weave": ("tracking/weave.py",),
    "tensorboard": ("tracking/tensorboard.py",),
    "bfcl_eval": ("mcprl_suites/",),
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


def test_the_core_imports_none_of_the_packages_that_extend_it():
    wrong = [
        f"src/mcprl/{file.name}:{line} imports {module}"
        for file in source_files()
        if file.part not in PACKAGES
        for line, module in imported_modules(file)
        if module.split(".")[0] in PACKAGES
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

    assert "learning" not in reachable("episodes")
    assert "episodes" not in reachable("learning")


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
