"""What the dashboard answers about a run that real code wrote: every address, and questions that make no sense."""
# R29

from __future__ import annotations

import asyncio
import json

import pytest
from shown_runs import TASKS, get, make_episode, record

from mcprl.errors import ServerStartError
from mcprl.runs.journal import EpisodeJournal
from mcprl.tools.stats import ServerStats, ToolStats, stats_document, write_stats

RUN = "/api/runs/shown"


def test_the_list_shows_each_run_with_its_course_and_its_worst_verdict(client, folder):
    (run,) = get(client, "/api/runs")["runs"]
    assert (run["id"], run["state"], run["step"], run["steps"]) == ("shown", "running", 2, 5)
    assert run["reward"] == [0.5, 0.5]
    assert run["worst"] == {"severity": "bad", "what": "all is lost", "fix": "begin anew", "name": "loss"}
    folder.record_end(ServerStartError("server 'fmp' did not start", fix="install it"))
    folder.close()
    why = "infrastructure error E-TOOL-010 server 'fmp' did not start. Fix: install it."
    for shown in (get(client, "/api/runs")["runs"][0], get(client, RUN)):
        assert (shown["state"], shown["why"]) == ("failed", why)
    (folder.path / "end.json").unlink()
    assert get(client, RUN)["state"] == "interrupted"
    assert "killed" in get(client, RUN)["why"]


def test_a_run_has_its_settings_and_the_limits_of_its_figures(client, folder):
    run = get(client, RUN)
    assert run["config"]["training"]["steps"] == 5
    assert run["config_yaml"] == folder.config_file.read_text()
    assert run["bounds"]["kl_target"] == 0.02
    assert (run["bounds"]["clip_low"], run["bounds"]["clip_high"]) == (0.2, 0.2)


def test_a_key_in_the_settings_is_not_shown(client, folder):
    key = "sk-proj-" + "a1B2c3D4" * 5
    folder.config_file.write_text(folder.config_file.read_text() + f"\nextra: 'Authorization: Bearer {key}'\n")
    assert key not in client.get(RUN).text


def test_metrics_verdicts_and_spans_are_those_of_the_files_with_null_for_nan(client):
    assert [step["loss"] for step in get(client, f"{RUN}/metrics")["steps"]] == [None, 0.1]
    assert [step["step"] for step in get(client, f"{RUN}/metrics", since=0)["steps"]] == [1]
    assert [verdict["severity"] for verdict in get(client, f"{RUN}/health")["verdicts"]] == ["ok", "bad"]
    assert get(client, f"{RUN}/timeline")["spans"][1] == {"step": 1, "activity": "collect", "start": 1.0, "end": 1.5}


def test_tools_show_rates_latencies_and_what_is_used_of_a_budget(client, folder):
    tools = ToolStats()
    for turn in make_episode(fault=True).turns + make_episode().turns:
        for observation in turn.observations:
            tools.record(observation)
    assert get(client, f"{RUN}/tools") == {"servers": []}
    write_stats(folder.path, stats_document({"directory": ServerStats(calls=2)}, tools))
    (server,) = get(client, f"{RUN}/tools")["servers"]
    assert (server["calls"], server["errors"], server["error_rate"]) == (2, 1, 0.5)
    assert server["p50_s"] == pytest.approx(0.25, rel=0.011)
    assert server["budget"] == {"unit": "calls", "used": 2, "limit": 10}
    assert [tool["tool"] for tool in server["tools"]] == ["find_person"]


def test_ratios_are_counted_by_the_sign_of_the_advantage(client):
    ratios = get(client, f"{RUN}/ratios")
    assert (ratios["step"], ratios["steps"], ratios["tokens"]) == (1, [0, 1], 8)
    assert (sum(ratios["positive"]), sum(ratios["negative"]), ratios["below"], ratios["above"]) == (4, 0, 0, 0)
    place = ratios["positive"].index(4)
    assert ratios["edges"][place] <= 1.0 < ratios["edges"][place + 1]
    assert client.get(f"{RUN}/ratios", params={"step": 7}).status_code == 404


def test_facets_count_what_there_is_to_filter_by(client):
    facets = _when_all_is_read(client)
    assert (facets["episodes"], facets["steps"], facets["problems"]) == (8, [0, 1], [])
    assert facets["tasks"] == [{"id": task, "count": 4} for task in sorted(TASKS)]
    assert facets["tools"] == [{"name": "find_person", "count": 8}]
    assert facets["stops"] == [{"name": "answered", "count": 8}]


def test_a_page_of_episodes_has_what_the_table_shows(client):
    found = get(client, f"{RUN}/episodes", limit=3)
    assert (found["total"], len(found["rows"])) == (8, 3)
    row = found["rows"][0]
    assert (row["step"], row["task_id"], row["member"], row["solved"]) == (1, TASKS[1], 0, False)
    assert (row["turns"], row["calls"], row["faults"], row["tokens"], row["sampled_tokens"]) == (2, 1, 0, 4, 2)
    assert (row["tools"], row["preview"], row["live"]) == (["find_person"], "Ana is in Lima, 1", False)
    assert get(client, f"{RUN}/episodes", offset=100) | {"took_ms": 0, "pending": 0} == {
        "total": 8,
        "rows": [],
        "pending": 0,
        "problems": [],
        "took_ms": 0,
    }


def test_an_episode_comes_with_its_task_its_group_and_its_neighbours(client):
    found = get(client, f"{RUN}/episode", step=0, task=TASKS[1], member=1)
    episode = found["episode"]
    assert (episode["reward"], episode["solved"], episode["reward_parts"]) == (1.0, True, {"answer": 1.0})
    assert episode["turns"][0]["calls"] == [
        {"name": "find_person", "arguments": {"name": "Zoë", "n": [1]}, "problem": None}
    ]
    observation = episode["turns"][0]["observations"][0]
    assert (observation["server"], observation["latency_s"], observation["worked"]) == ("directory", 0.25, True)
    assert found["task"]["prompt"] == [{"role": "user", "content": f"{TASKS[1]}?"}]
    assert found["task"]["preamble"] == []
    assert [(one["member"], one["reward"], one["advantage"]) for one in found["group"]] == [(0, 0, 0), (1, 1, 1)]
    assert found["neighbours"] == {"previous": None, "next": {"step": 1, "task_id": TASKS[1], "member": 1}}


def test_without_its_task_file_an_episode_says_why_there_is_no_prompt(client, folder):
    (folder.path.parent / "tasks.jsonl").unlink()
    found = get(client, f"{RUN}/episode", step=0, task=TASKS[0], member=0)
    assert found["task"] is None
    assert "tasks.jsonl cannot be read" in found["task_missing"]


def test_the_course_of_a_task_tells_its_steps_apart(client):
    course = get(client, f"{RUN}/task", task=TASKS[0])
    assert [(step["step"], step["episodes"], step["solved"]) for step in course["steps"]] == [(0, 2, 1), (1, 2, 1)]
    assert (course["steps"][0]["reward_mean"], course["steps"][0]["reward_max"]) == (0.5, 1.0)


def test_finished_episodes_of_the_step_under_way_are_shown_as_live_until_the_step_is_recorded(client, folder):
    episodes = [make_episode(step=2, task_id=TASKS[0], member=m, reward=float(m), text="Half done") for m in range(2)]

    async def journal() -> None:
        async with EpisodeJournal(folder.journal) as journal:
            for episode in episodes:
                await journal.add(episode)

    asyncio.run(journal())
    with (folder.journal / "step-00002.jsonl").open("ab") as file:
        file.write(b"0123 torn")
    found = get(client, f"{RUN}/episodes", step_from=2)
    assert [(row["member"], row["solved"], row["live"]) for row in found["rows"]] == [(0, False, True), (1, True, True)]
    assert get(client, f"{RUN}/episodes", q="HALF DONE")["total"] == 2
    one = get(client, f"{RUN}/episode", step=2, task=TASKS[0], member=1)["episode"]
    assert (one["live"], one["turns"][1]["text"]) == (True, "Half done")
    record(folder, 2, episodes)
    _until(lambda: not any(row["live"] for row in get(client, f"{RUN}/episodes", step_from=2)["rows"]))
    assert get(client, f"{RUN}/episodes", step_from=2)["total"] == 2


def test_what_cannot_be_read_is_named_and_hides_nothing_else(client, folder):
    (folder.path / "trajectories" / "step-00007.parquet").write_bytes(b"PAR1 nonsense")
    found = get(client, f"{RUN}/episodes")
    assert found["total"] == 8
    (problem,) = found["problems"]
    assert problem.startswith("trajectories/step-00007.parquet cannot be read")


def test_a_run_that_is_resumed_from_an_earlier_step_loses_what_came_after(client, folder):
    assert get(client, f"{RUN}/episodes")["total"] == 8
    folder.cut_to(1)
    _until(lambda: get(client, f"{RUN}/episodes")["total"] == 4)
    assert [step["step"] for step in get(client, f"{RUN}/metrics")["steps"]] == [0]
    other = [make_episode(step=1, member=m, text="Another life") for m in range(2)]
    record(folder, 1, other)
    _until(lambda: get(client, f"{RUN}/episodes", q="another life")["total"] == 2)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{RUN}/episode?step=0&task=nobody&member=0", 404),
        (f"{RUN}/episode?step=0&member=0", 400),
        (f"{RUN}/episode?step=-1&task=x&member=0", 400),
        (f"{RUN}/episodes?sort=text", 400),
        (f"{RUN}/episodes?order=random()", 400),
        (f"{RUN}/episodes?reward_min=nan", 400),
        (f"{RUN}/episodes?limit=99999999999999999999", 400),
        (f"{RUN}/episodes?q=" + "a" * 1001, 400),
        (f"{RUN}/tokens?step=0&task=find-ana&member=0", 404),
        (f"{RUN}/task?task=nobody", 404),
        ("/api/runs/none", 404),
        ("/api/runs/..", 404),
        ("/api/runs/%2e%2e%2f%2e%2e", 404),
        ("/api/runs/shown%2f..%2fshown", 404),
        ("/api/nothing", 404),
        ("/assets/../app.py", 404),
        ("/assets/%2e%2e/%2e%2e/app.py", 404),
        ("/assets//etc/passwd", 404),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_fix(client, path, status):
    answer = client.get(path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"code", "what", "fix"}


def test_a_search_is_for_the_text_itself_whatever_sql_would_make_of_it(client, folder):
    texts = ["' OR 1=1 --", "'; DROP TABLE full_rows; --", "%", "_", "$q", "?", "\\", "{condition}", "\x00", '"', "ZOË"]
    record(folder, 2, [make_episode(step=2, member=m, text=f"say {text} now") for m, text in enumerate(texts)])
    _when_all_is_read(client)
    for member, text in enumerate(texts):
        found = get(client, f"{RUN}/episodes", q=f"SAY {text.lower()} now")
        assert [(row["step"], row["member"]) for row in found["rows"]] == [(2, member)]
        assert get(client, f"{RUN}/episodes", task=text, tool=text, stop=text)["total"] == 0


def test_without_built_pages_every_page_says_how_to_build_them(client, monkeypatch, tmp_path):
    monkeypatch.setattr("mcprl_dashboard.app._STATIC", tmp_path)
    for path in ("/", "/runs/shown", "/runs/shown/episodes/1/ask%2Fthe%20time/0", "/compare?runs=a,b"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (503, "text/plain; charset=utf-8")
        assert "scripts/setup dashboard" in answer.text
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "assets" / "app-1.js").write_text("1")
    assert client.get("/runs/shown/tasks/ask/the time").text == "<!doctype html>"
    assert client.get("/assets/app-1.js").headers["content-type"].startswith("text/javascript")


def test_answers_are_plain_json_in_ascii(client):
    answer = client.get(f"{RUN}/episode", params={"step": 0, "task": TASKS[0], "member": 0})
    assert answer.headers["content-type"] == "application/json"
    assert answer.content.isascii()
    assert json.loads(answer.content)["episode"]["turns"][0]["calls"][0]["arguments"]["name"] == "Zoë"


def _when_all_is_read(client) -> dict:
    found = get(client, f"{RUN}/facets")
    while found["pending"]:
        found = get(client, f"{RUN}/facets")
    return found


def _until(true) -> None:
    """The index takes in changed files a few times a second; pytest's own deadline ends what never comes."""
    while not true():
        pass
