"""Tasks from servers that nobody has seen before: proven, repeatable, and without a call that may write."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import synthesis_servers
from mcprl.cli import app
from mcprl.config import ServerSettings
from mcprl.episodes.demonstrations import play, play_gold
from mcprl.episodes.environment import Action, Environment, ErrorInjection
from mcprl.episodes.loop import lease_for
from mcprl.errors import NoConsentError, NoReachableToolError
from mcprl.recipe import load_recipe
from mcprl.records import FinishReason, Source, ToolCall
from mcprl.servers import make_server
from mcprl.tasks import load_tasks
from mcprl.tools import Cassette, ServerSpec, Toolbox
from mcprl_synthesis.compose import Effect
from mcprl_synthesis.derived_checks import REWARDS
from mcprl_synthesis.reading import fields_of, junk
from mcprl_synthesis.synthesis import Synthesis, synthesize
from mcprl_synthesis.verify import Verifier
from mcprl_synthesis.world import World
from mcprl_synthesis.writes import draw_write, find_effects
from synthesis_servers import (
    INJECTION,
    NAMES,
    PRODUCTS,
    make_broken,
    make_prose,
    make_shop,
    make_undeclared,
    shop_specs,
)

COUNT = 30


async def run(folder, specs, *, cassette, hints=None, allow_writes=(), count=COUNT) -> Synthesis:
    folder.mkdir(parents=True, exist_ok=True)
    with Cassette.open(cassette, writable=True) as record:
        async with World(specs, record, allow_writes=allow_writes, log_dir=folder, apart_s=0) as world:
            made = await synthesize(world, count=count, seed=7, hints=hints or {})
            made.write(folder)
    return made


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Tasks of the shop, with writes to its second server; the folder and the calls of the first server."""
    folder, calls = tmp_path_factory.mktemp("shop"), Counter[str]()
    made = asyncio.run(run(folder / "tasks", shop_specs(calls), cassette=folder / "c.sqlite", allow_writes=["stock"]))
    return folder, calls, made


def tasks_of(folder: Path):
    names = ("train.jsonl", "validation.jsonl")
    return [task for name in names if (folder / name).exists() for task in load_tasks(folder / name)]


def test_tools_that_may_write_are_never_called_unless_they_are_allowed(shop):
    _, calls, _ = shop
    assert calls["drop_everything"] == 0
    assert calls["get_product"] > 0


def test_tasks_link_calls_use_several_servers_and_write(shop):
    _, _, made = shop
    figures = made.figures()
    assert figures["tasks"] == COUNT
    assert figures["linked_share"] >= 0.4
    assert figures["several_servers_share"] >= 0.1
    assert figures["writes_share"] >= 0.03


async def test_every_solution_earns_1_and_doing_nothing_0_on_the_servers_themselves(shop, tmp_path):
    folder, _, made = shop
    tasks = tasks_of(folder / "tasks")
    async with Toolbox(made.world.specs, log_dir=tmp_path) as toolbox:
        gold = await play_gold(tasks, toolbox, REWARDS)
        idle = [await play(task, toolbox, (), "", REWARDS) for task in tasks]
    assert {trial.reward for trial in gold} == {1.0}
    assert {trial.reward for trial in idle} == {0.0}


def test_questions_have_no_text_of_a_server_but_names_and_proven_values(shop):
    folder, _, made = shop
    proven = {str(value) for values in made.found.proven.values() for value in values}
    assert proven <= {*PRODUCTS, *(row[0] for row in PRODUCTS.values()), *(row[2] for row in PRODUCTS.values())} | {
        value for value in proven if value == "welcome"
    }
    for task in tasks_of(folder / "tasks"):
        asked = task.prompt[0]["content"]
        assert INJECTION not in asked
        assert "IGNORE" not in asked


def test_no_value_between_the_calls_and_no_answer_is_in_the_question(shop):
    folder, _, _ = shop
    for task in tasks_of(folder / "tasks"):
        assert task.solution is not None
        asked = task.prompt[0]["content"].split()
        assert not {*task.metadata["links"]} & {word.strip(".,?") for word in asked}


def test_no_entity_is_in_both_splits(shop):
    folder, _, _ = shop
    sides = [
        {entity for task in load_tasks(folder / "tasks" / name) for entity in task.metadata["entities"]}
        for name in ("train.jsonl", "validation.jsonl")
        if (folder / "tasks" / name).exists()
    ]
    assert not set.intersection(*sides) or len(sides) < 2


def test_what_a_task_removes_is_an_entity_and_a_new_word_is_none(shop):
    _, _, made = shop
    composer = made.verifier.composer
    removal = Effect(
        tool="remove_sku",
        arguments=(("sku", "SK100"),),
        payload="sku",
        marks=(),
        probe="list_skus",
        probed=(),
        removes=True,
    )
    note = replace(removal, tool="add_note", arguments=(("title", "x"), ("text", "y")), marks=("title", "text"))
    removed = [draw_write(composer, [removal], random.Random(number)) for number in range(20)]
    skus = [dict(plan.steps[-1].given)["sku"] for plan in removed if plan is not None]
    assert len(set(skus)) >= 5
    assert [composer.entities(plan, ()) for plan in removed if plan is not None] == [[sku.casefold()] for sku in skus]
    written = draw_write(composer, [replace(note, payload="title", probe="list_notes")], random.Random(0))
    assert written is not None
    assert composer.entities(replace(written, steps=written.steps[-1:]), ()) == []


async def test_a_write_is_proven_by_a_read_of_what_it_was_written_to(shop):
    _, _, made = shop
    effects = await find_effects(made.world, made.found, 7)
    probes = {effect.probe for effect in effects if (effect.tool, effect.payload) == ("add_remark", "remark")}
    assert probes == {"get_remark"}  # list_remarks shows it, too, whatever it belongs to


async def test_a_task_whose_checks_were_not_all_made_is_rejected(shop, tmp_path):
    """A second run replays what was recorded, and may make no further calls."""
    folder, _, made = shop
    shutil.copy(folder / "c.sqlite", tmp_path)
    with Cassette.open(tmp_path / "c.sqlite", writable=True) as record:
        async with World(made.world.specs, record, allow_writes=["stock"], log_dir=tmp_path, apart_s=0) as world:
            world.limit_per_tool = 0
            verifier = Verifier(world, made.verifier.composer, seed=made.verifier.seed + 1)  # which tries other values
            why = [await verifier._depends(draft) for draft in made.drafts]
    assert set(why) == {None, "not verified: the limit of 0 calls was reached"}


async def test_the_same_seed_and_cassette_give_the_same_bytes_and_make_no_call(shop, tmp_path):
    folder, _, _ = shop
    calls = Counter[str]()
    again = await run(tmp_path, shop_specs(calls), cassette=folder / "c.sqlite", allow_writes=["stock"])
    assert again.world.cost.calls.total() == 0
    assert not calls
    for name in ("train.jsonl", "validation.jsonl", "report.md", "report.json"):
        assert (tmp_path / name).exists() == (folder / "tasks" / name).exists()
        if (tmp_path / name).exists():
            assert (tmp_path / name).read_bytes() == (folder / "tasks" / name).read_bytes()


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Tasks of the shop next to a server with everything that servers get wrong."""
    folder = tmp_path_factory.mktemp("broken")
    settings = ServerSettings(call_deadline_s=0.5, attempts=1)
    specs = [
        ServerSpec(name="shop", make=partial(make_shop, Counter())),
        ServerSpec(name="broken", make=make_broken, settings=settings),
    ]
    return asyncio.run(run(folder, specs, cassette=folder / "c.sqlite", count=40))


async def test_a_second_run_says_again_which_tools_stopped_and_why(broken, tmp_path):
    folder = broken.world.log_dir
    await run(tmp_path, broken.world.specs, cassette=folder / "c.sqlite", count=40)
    report = (tmp_path / "report.md").read_text()
    assert "`never_answer` | broken | it failed 3 times (E-TOOL" in report
    assert report == (folder / "report.md").read_text()


def test_a_field_that_changes_by_itself_is_named_and_not_asked_for(broken):
    assert any("read_meter: the Reading" in name for name in broken.verifier.volatile)
    assert not any(ref[1] == "Reading" for draft in broken.drafts for _, ref in draft.plan.operands)


async def test_no_wrong_task_comes_from_failing_slow_flooding_and_paginated_tools(broken, tmp_path):
    used = {call.name for draft in broken.drafts for call in draft.outcome.calls}
    assert not {"flood", "fail_often", "never_answer"} & used
    assert {"read_meter", "list_page"} <= used
    assert "E-TOOL-012 server 'broken' did not finish" in broken.world.cost.stopped["never_answer"]
    tasks = [draft.task for draft in broken.drafts]
    async with Toolbox(broken.world.specs, log_dir=tmp_path) as toolbox:
        assert {trial.reward for trial in await play_gold(tasks, toolbox, REWARDS)} == {1.0}
    assert not any("IGNORE" in task.prompt[0]["content"] for task in tasks)


@pytest.mark.process
async def test_a_field_that_is_different_tomorrow_is_named_and_not_asked_for(tmp_path):
    specs = [ServerSpec(name="daily", command=sys.executable, args=(synthesis_servers.__file__,))]
    made = await run(tmp_path, specs, cassette=tmp_path / "c.sqlite", count=12)
    assert made.world.ahead == ["daily"]
    assert any("the Edition" in name for name in made.verifier.volatile)
    asked = {ref[1] for draft in made.drafts for _, ref in draft.plan.operands}
    assert "Serial" in asked
    assert "Edition" not in asked


@pytest.mark.process
def test_one_command_makes_a_project_with_verified_tasks_of_its_servers(tmp_path, monkeypatch):
    monkeypatch.setitem(World.__init__.__kwdefaults__, "apart_s", 0.0)
    monkeypatch.setattr("mcprl_synthesis.synthesis._ROUNDS", 1)
    daily = {"command": sys.executable, "args": [synthesis_servers.__file__]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"daily": daily}}))
    folder = tmp_path / "mine"
    made = CliRunner().invoke(app, ["init", str(folder), "--servers", str(tmp_path / "servers.json"), "--yes"])
    assert made.exit_code == 0, made.output
    config = load_recipe(folder / "recipe.yaml")
    assert all(task.solution for task in load_tasks(config.tasks.train))
    assert (folder / "tasks" / "report.html").exists()


async def test_values_of_recorded_conversations_reach_a_server_without_a_listing(tmp_path):
    said = {"find_person": {"name": ["Ana", "Bola", "Nobody Here"]}}
    said |= {"list_people": {"city": ["Lagos", "Tokyo", "Lima", "Dubai", "Bogota", "Kolkata"]}}
    with Cassette.open(tmp_path / "c.sqlite", writable=True) as cassette:
        for tool, arguments in said.items():
            for name, values in arguments.items():
                for value in values:
                    cassette.record("a recorded server", "", tool, {name: value}, "(an old answer)")
    specs = [ServerSpec(name="directory", make=partial(make_server, "directory"))]
    made = await run(tmp_path / "tasks", specs, cassette=tmp_path / "c.sqlite", count=6)
    assert {"Ana", "Bola"} <= set(made.found.proven["find_person", "name"])
    assert made.drafts
    assert not any("Nobody" in draft.task.prompt[0]["content"] for draft in made.drafts)


async def test_hardening_with_more_tools_keeps_questions_and_solutions(shop, tmp_path):
    folder, _, made = shop
    with Cassette.open(folder / "c.sqlite", writable=True) as record:
        async with World(made.world.specs, record, allow_writes=["stock"], log_dir=tmp_path, apart_s=0) as world:
            harder = await synthesize(world, count=COUNT, seed=7, hints={}, distractors=5)
    easy, hard = ([draft.task for draft in each.drafts] for each in (made, harder))
    assert [replace(task, tools=None) for task in hard] == [replace(task, tools=None) for task in easy]
    assert sum(len(task.tools or ()) for task in hard) > sum(len(task.tools or ()) for task in easy)


async def test_hardening_with_injected_errors_still_pays_a_policy_that_repeats_its_calls(shop, tmp_path):
    _, _, made = shop
    injected = 0
    async with Toolbox(made.world.specs, log_dir=tmp_path) as toolbox:
        for draft in made.drafts:
            injection = ErrorInjection(rate=0.2, seed=7, step=0, task_id=draft.task.id, member=0)
            async with lease_for(draft.task, toolbox, lives_s=60) as access:
                environment = Environment(
                    draft.task, access, preamble=(), max_turns=20, rewards=REWARDS, injection=injection
                )
                left = list(draft.outcome.calls)
                while left:
                    seen = (await environment.step(action("", left[0]))).observations[0]
                    injected += seen.source is Source.INJECTED
                    left = left if seen.source is Source.INJECTED else left[1:]
                await environment.step(action(draft.outcome.answer))
            assert environment.reward == 1.0
    assert injected > 5


def action(prose: str, *calls: ToolCall) -> Action:
    return Action(text="", prose=prose, calls=calls, sampled_ids=(), finish=FinishReason.STOP, weights_version=0)


async def test_a_server_without_a_listing_ends_in_an_error_that_asks_for_hints(tmp_path):
    specs = [ServerSpec(name="directory", make=partial(make_server, "directory"))]
    with pytest.raises(NoReachableToolError, match=r"find_person needs name.*--hints"):
        await run(tmp_path, specs, cassette=tmp_path / "c.sqlite")


async def test_a_server_that_declares_no_tool_read_only_ends_in_an_error_that_says_how_to(tmp_path):
    specs = [ServerSpec(name="notes", make=make_undeclared)]
    with pytest.raises(NoReachableToolError, match=r"declared read-only: list_notes.*read_only: \[TOOL"):
        await run(tmp_path, specs, cassette=tmp_path / "c.sqlite")
    specs = [replace(specs[0], settings=ServerSettings(read_only=("list_notes",)))]
    made = await run(tmp_path / "again", specs, cassette=tmp_path / "c.sqlite", count=4)
    assert made.drafts


async def test_results_without_named_values_end_in_an_error_that_says_so(tmp_path):
    specs = [ServerSpec(name="prose", make=make_prose)]
    with pytest.raises(NoReachableToolError, match=r"no question can be made from the results of tell_story"):
        await run(tmp_path, specs, cassette=tmp_path / "c.sqlite", count=4)


async def test_hints_are_enough_for_a_single_tool_whose_results_are_numbers(tmp_path):
    only = ServerSettings(allow=("find_maker",))
    specs = [ServerSpec(name="shop", make=partial(make_shop, Counter()), settings=only)]
    made = await run(tmp_path, specs, cassette=tmp_path / "c.sqlite", hints={"maker": NAMES[:16]}, count=12)
    assert {"single", "join"} <= {draft.plan.shape for draft in made.drafts}


async def test_the_error_says_what_a_tool_answered_to_the_values_of_the_hints(tmp_path):
    specs = [ServerSpec(name="directory", make=partial(make_server, "directory"))]
    with pytest.raises(NoReachableToolError, match=r"find_person needs name \(it answered: .*Nobody"):
        await run(tmp_path, specs, cassette=tmp_path / "c.sqlite", hints={"name": ["Nobody Here"]})


async def test_the_error_says_why_the_calls_of_a_tool_failed(tmp_path):
    settings = ServerSettings(call_deadline_s=0.2, attempts=1, allow=("never_answer",))
    specs = [ServerSpec(name="broken", make=make_broken, settings=settings)]
    with pytest.raises(NoReachableToolError, match=r"never_answer needs sku \(it answered: E-TOOL-012 .*0\.2 s"):
        await run(tmp_path, specs, cassette=tmp_path / "c.sqlite", hints={"sku": ["SK100"]})


async def test_two_hints_are_enough_for_a_server_without_a_listing(tmp_path):
    specs = [ServerSpec(name="directory", make=partial(make_server, "directory"))]
    hints = {"city": ["Lagos", "Tokyo", "Lima", "Dubai", "Bogota", "Kolkata"], "name": ["Ana", "Bola"]}
    made = await run(tmp_path, specs, cassette=tmp_path / "c.sqlite", hints=hints, count=10)
    assert any(draft.plan.is_linked for draft in made.drafts)


async def test_a_call_that_may_write_is_refused_with_a_name(tmp_path):
    with Cassette.open(tmp_path / "c.sqlite", writable=True) as record:
        async with World(shop_specs(Counter()), record, log_dir=tmp_path) as world:
            with pytest.raises(NoConsentError, match="drop_everything"):
                await world.look(0).read("drop_everything", {"sku": "SK100"})


def test_values_are_read_from_json_from_labels_and_from_lists():
    assert fields_of('{"city": "Lima", "deep": {"zip": 4}, "rows": [{"id": "a"}]}') == {
        ("the", "city"): "Lima",
        ("the", "zip"): "4",
        ("entry 1", "id"): "a",
    }
    listed = fields_of("**Channels:**\n#general (ID: C1X) - all\n#random (ID: C2Y) - rest")
    assert listed["entry", "2"] == "random"
    assert listed["entry 2", "ID"] == "C2Y"
    assert fields_of("Price: $3.50\nMaker: Bo")["the", "Price"] == "$3.50"
    assert fields_of("- Ana: file:///x/ana.html\n- Bo: http://localhost:80/bo") == {
        ("the", "Ana"): "file:///x/ana.html",
        ("the", "Bo"): "http://localhost:80/bo",
        ("entry", "1"): "Ana",
        ("entry", "2"): "Bo",
    }


def test_rows_of_a_table_and_json_among_prose_are_read():
    assert fields_of('{"range": "A1:B2", "rows": [["town", "born"], ["Lima", 1953]]}') == {
        ("the", "range"): "A1:B2",
        ("entry 1", "value 1"): "town",
        ("entry 1", "value 2"): "born",
        ("entry 2", "value 1"): "Lima",
        ("entry 2", "value 2"): "1953",
    }
    assert fields_of('These are the results:\n{"errors": 2, "rows": [{"line": 4}]}\nShow them.') == {
        ("the", "errors"): "2",
        ("entry 1", "line"): "4",
    }
    assert fields_of('{"id": "a"}\n{"id": "b"}') == {("entry 1", "id"): "a", ("entry 2", "id"): "b"}
    assert fields_of("{name}\nTown: Lima\nBorn: 1953")["the", "Town"] == "Lima"


def test_junk_has_the_shape_of_the_value():
    import random

    value = junk("SK-100 ab", random.Random(7))
    assert len(value) == 9
    assert value[:2].isupper()
    assert value[3:6].isdigit()
    assert value[2] == "-"
