"""A tracker that is down, slow, stuck or gone costs a run nothing, is spoken of once, and holds up no run's end."""
# R28

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import pytest
from told_runs import KEY, Listener, episode, make_config, make_folder, tell
from tracking_stand_in import FAULTS, StandIn, stand_in

from mcprl.config import TrackingConfig
from mcprl.errors import MissingExtraError
from mcprl.processes import free_port
from mcprl.records import FinishReason, LostEpisode, ToolCall, Turn
from mcprl.secrets import SECRETS
from mcprl.tracking import delivery
from mcprl.tracking.delivery import Delivery, Trackers, require_trackers, tracker_environment
from mcprl.tracking.reports import episode_report, run_started
from processor_time import uncollected

FLUSH_S = 1.0
END_S = FLUSH_S + 60.0  # to be ended by force takes a second and a bit, but the machine may be very busy


# A tracker of the user's own that posts each episode, and says what it could not.
POSTER = """
import os
from urllib.request import urlopen


class Poster:
    def __init__(self, run, status):
        self.url, self.status = os.environ["POSTER_URL"], status

    def episode_finished(self, episode):
        try:
            with urlopen(self.url, episode.task_id.encode(), timeout=0.2) as answer:
                answer.read()
        except Exception as error:
            self.status.say("trouble", str(error) or type(error).__name__)

    def step_finished(self, step): ...

    def run_ended(self, end): ...

    def close(self): ...
"""


async def told_to(delivery: Delivery, folder, tracking: TrackingConfig) -> None:
    started = run_started(make_config(folder, **tracking.model_dump()), folder)
    await delivery.start(started, environment=os.environ, logs=folder / "logs")


def test_nobody_is_told_unless_the_recipe_says_so():
    assert TrackingConfig().named == []


@pytest.mark.parametrize("kind", ["wandb", "weave", "tensorboard"])
def test_a_missing_library_is_known_before_anything_starts(monkeypatch, kind):
    tracking = {
        "wandb": {"wandb": {"project": "p"}},
        "weave": {"weave": {"project": "e/p"}},
        "tensorboard": {"tensorboard": True},
    }[kind]
    config = TrackingConfig.model_validate(tracking)
    require_trackers(config)
    monkeypatch.setitem(delivery._MODULES, kind, f"no_such_package.{kind}")
    with pytest.raises(MissingExtraError) as raised:
        require_trackers(config)
    assert raised.value.fix == f"install mcprl[{kind}]"


def test_a_tracker_gets_its_own_keys_and_no_others(monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "FMP_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FMP_API_KEY", "fmp-key-of-a-server")
    monkeypatch.setenv("HOME", "/home/ana")
    keys = {
        "WANDB_API_KEY": KEY,
        "FMP_API_KEY": "f",
        "WANDB_BASE_URL": "http://u:pass-word-9@wandb.local",
    }
    wandb = tracker_environment("wandb", keys)
    assert (wandb["WANDB_API_KEY"], wandb["WANDB_BASE_URL"]) == (KEY, "http://u:pass-word-9@wandb.local")
    assert wandb["HOME"] == "/home/ana"
    assert "FMP_API_KEY" not in wandb
    assert "WANDB_API_KEY" not in tracker_environment("tensorboard", keys)
    assert SECRETS.redact(f"{KEY} pass-word-9").count("[redacted") == 2


@pytest.mark.process
async def test_whatever_the_fault_a_tracker_is_spoken_of_once_and_ends_in_time(tmp_path, record_property, monkeypatch):
    monkeypatch.setattr(delivery, "FLUSH_S", FLUSH_S)
    (tmp_path / "poster.py").write_text(POSTER)
    servers: dict[str, StandIn | None] = {fault: StandIn(fault) for fault in FAULTS} | {"refused": None}
    listeners = {fault: Listener() for fault in servers}
    trackers = {}
    for fault, server in servers.items():
        (tmp_path / fault).mkdir()
        folder = make_folder(tmp_path / fault)
        url = server.url if server is not None else f"http://127.0.0.1:{free_port()}"
        monkeypatch.setenv("POSTER_URL", url)
        trackers[fault] = Trackers(make_config(folder, tracker=f"{tmp_path}/poster.py:Poster"), listeners[fault])
        await trackers[fault].start(folder)
    for fault in servers:
        for member in range(4):
            trackers[fault].episode_finished(0, episode(0, member))
        trackers[fault].step_finished(0, {"reward": 1.0}, [])
        trackers[fault].run_ended({"updates": 1})
    # All of them have sent something before their time begins.
    for each in (d for t in trackers.values() for d in t._deliveries):
        await each.ready.wait()
    for fault, server in servers.items():
        assert server is None or await asyncio.to_thread(server.asked.wait, 60), fault
    began = time.monotonic()
    outcomes = await asyncio.gather(*(t.close() for t in trackers.values()))
    took = time.monotonic() - began
    record_property("close_s", round(took, 2))
    for server in servers.values():
        if server is not None:
            server.close()
    assert took < END_S
    for fault, outcome in zip(servers, outcomes, strict=True):
        (told,) = outcome.values()
        said = [text for text in listeners[fault].said if text.startswith("tracking: ")]
        assert told.state == "incomplete", fault
        assert len(said) == 1, (fault, said)
        note = json.loads((tmp_path / fault / "told" / "tracking.json").read_text())
        assert note["tracker"]["said"] == list(told.said)


@pytest.mark.process
async def test_a_process_that_is_stuck_fills_the_queue_and_never_the_run(tmp_path):
    folder, listener = make_folder(tmp_path), Listener()
    delivery = Delivery("tensorboard", listener.stage, capacity=8)
    await told_to(delivery, folder, TrackingConfig(tensorboard=True))
    os.kill(delivery._child.pid, signal.SIGSTOP)
    while not delivery._queue.empty():  # noqa: ASYNC110 - the thread takes the start of the run, and sets no event
        await asyncio.sleep(0.01)
    long_text = Turn(text="x" * 200_000, sampled_ids=(1,), finish=FinishReason.STOP, weights_version=0)
    reports = [episode_report(episode(member=m, turns=(long_text,)), 1.0) for m in range(40)]
    with uncollected():
        began = time.thread_time()
        for report in reports:
            delivery.put(lambda report=report: report)
        assert time.thread_time() - began < 1.0
    began = time.monotonic()
    outcome = await delivery.close(FLUSH_S)
    assert time.monotonic() - began < END_S
    assert outcome.state == "incomplete"
    assert outcome.reports == 41
    # The thread holds one, the pipe a part of one, the queue eight; the place of one of these was needed for the end.
    assert 30 <= outcome.dropped <= 33
    assert [text.split(" did ")[0] for text in listener.said] == ["tracking: TensorBoard"]


@pytest.mark.process
async def test_a_process_that_dies_is_spoken_of_and_costs_nothing(tmp_path):
    folder, listener = make_folder(tmp_path), Listener()
    delivery = Delivery("tensorboard", listener.stage)
    await told_to(delivery, folder, TrackingConfig(tensorboard=True))
    os.kill(delivery._child.pid, signal.SIGKILL)
    await delivery._watch
    delivery.put(lambda: episode_report(episode(), 1.0))
    outcome = await delivery.close(60.0)
    assert (outcome.state, outcome.dropped) == ("failed", 1)
    (said,) = listener.said
    assert said.startswith("tracking: TensorBoard will receive no more reports: its process ended with status -9")
    assert said.endswith("; the run continues and records everything in its folder")


@pytest.mark.process
async def test_what_a_library_raises_is_told_in_its_words(tmp_path, monkeypatch):
    folder, listener = make_folder(tmp_path), Listener()
    (folder / "tensorboard").write_text("a file where the folder should be")
    outcome = (await tell(folder, listener, tensorboard=True))["tensorboard"]
    assert outcome.state == "failed"
    (said,) = listener.said
    assert "exists" in said
    assert "Traceback" in (folder / "logs" / "tracker-tensorboard.log").read_text()


@pytest.mark.process
async def test_arguments_that_are_nested_too_deeply_are_left_out_and_counted(tmp_path):
    folder, listener = make_folder(tmp_path), Listener()
    nested: list = []
    for _ in range(5000):
        nested = [nested]
    deep = Turn(
        text="",
        sampled_ids=(1,),
        finish=FinishReason.STOP,
        weights_version=0,
        calls=(ToolCall(name="t", arguments={"a": nested}),),
    )
    delivery = Delivery("tensorboard", listener.stage)
    await told_to(delivery, folder, TrackingConfig(tensorboard=True))
    delivery.put(lambda: episode_report(episode(turns=(deep,)), 1.0))
    outcome = await delivery.close(60.0)
    assert (outcome.state, outcome.dropped) == ("incomplete", 1)
    assert "nested too deeply" in outcome.said[0]


@pytest.mark.process
async def test_a_process_that_cannot_be_started_is_spoken_of(tmp_path, monkeypatch):
    folder, listener = make_folder(tmp_path), Listener()
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    outcome = (await tell(folder, listener, tensorboard=True))["tensorboard"]
    assert outcome.state == "failed"
    assert "its process cannot be started: No such file or directory" in listener.said[0]


@pytest.mark.process
async def test_a_run_that_is_asked_to_stop_does_not_wait_for_all_of_flush_s(tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "FLUSH_S", 600.0)
    folder, listener = make_folder(tmp_path), Listener()
    config = make_config(folder, tensorboard=True)
    trackers = Trackers(config, listener, is_stopping=lambda: True)
    await trackers.start(folder)
    os.kill(trackers._deliveries[0]._child.pid, signal.SIGSTOP)
    async with asyncio.timeout(300):
        outcomes = await trackers.close()
    assert outcomes["tensorboard"].state == "incomplete"


async def test_an_episode_that_was_lost_is_the_consoles_affair_alone(tmp_path):
    heard = []
    listener = Listener()
    listener.episode_finished = lambda step, outcome: heard.append(outcome)
    trackers = Trackers(make_config(make_folder(tmp_path)), listener)
    lost = LostEpisode(task_id="a", member=0, attempt=0, code="E-TOOL-101", reason="gone")
    trackers.episode_finished(0, lost)
    trackers.stage("loading")
    assert (heard, listener.said) == ([lost], ["loading"])
    assert await trackers.close() == {}


def test_the_stand_in_keeps_what_it_is_sent():
    import urllib.request

    with stand_in() as server:
        with urllib.request.urlopen(f"{server.url}/server_info") as answer:
            assert json.loads(answer.read())["trace_server_version"]
        assert [request.path for request in server.requests] == ["/server_info"]


OWN = """
class Counts:
    def __init__(self, run, status):
        self.path, self.seen = run.folder / "seen.txt", []

    def episode_finished(self, episode):
        self.seen.append("episode")

    def step_finished(self, step):
        self.seen.append("step")

    def run_ended(self, end):
        self.seen.append("end")

    def close(self):
        self.path.write_text(" ".join(sorted(self.seen)))


class Fails:
    def __init__(self, run, status):
        raise ValueError("no such channel")
"""


@pytest.mark.process
async def test_a_tracker_in_the_users_own_file_gets_every_report(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    folder = make_folder(tmp_path / "run")
    outcome = (await tell(folder, Listener(), tracker=f"{tmp_path}/own.py:Counts"))["tracker"]
    assert (outcome.state, outcome.dropped) == ("delivered", 0)
    assert (folder / "seen.txt").read_text() == " ".join(["end", *["episode"] * 8, *["step"] * 2])


@pytest.mark.process
async def test_a_tracker_of_the_user_that_fails_is_named_with_file_and_line(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    listener, folder = Listener(), make_folder(tmp_path / "run")
    outcome = (await tell(folder, listener, tracker=f"{tmp_path}/own.py:Fails"))["tracker"]
    assert outcome.state == "failed"
    assert any("own.py:21: ValueError: no such channel" in said for said in listener.said)
