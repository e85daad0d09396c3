"""How a run talks to the processes of its learner: what is asked reaches all, and whoever fails is named.

The processes here are stand-ins that speak the protocol and compute nothing: what each is to do stands in a script.
"""
# R23

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from pathlib import Path

import pytest
from made_trajectories import make_config

from mcprl.errors import LearnerLostError, ParityError, StorageError
from mcprl.learning import distributed
from mcprl.learning.distributed import Answer, DistributedLearner
from mcprl.learning.sharding import deal

# Answers its plan, then does to the first request what its rank is told in the folder of scripts.
STAND_IN = """
import os, pathlib, signal, socket, sys, time
rank, folder = os.environ["RANK"], pathlib.Path(sys.argv[1])
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["MCPRL_LEARNER_SOCKET"])
def send(data): line.sendall(len(data).to_bytes(8, "big") + data)
def receive():
    left = int.from_bytes(line.recv(8, socket.MSG_WAITALL), "big")
    return line.recv(left, socket.MSG_WAITALL)
send((folder / f"rank-{rank}").read_bytes())
receive()
send((folder / "ready").read_bytes())
request = receive()
(folder / f"heard-{rank}").write_bytes(request)
exec((folder / f"script-{rank}").read_text())
"""
ANSWER = 'send((folder / f"answer-{rank}").read_bytes()); receive()'
WAIT = "time.sleep(600)"
DIE = 'print("out of luck", file=sys.stderr); sys.exit(3)'
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
DEADLINE_S = 60.0  # only a process that hangs takes so long, or a machine that does


@pytest.fixture
def learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(
        *scripts: str, answers: tuple[Answer, ...] = (Answer(), Answer()), blame_s: float = 0.5
    ) -> DistributedLearner:
        folder = tmp_path / "scripts"
        folder.mkdir()
        (folder / "ready").write_bytes(pickle.dumps(Answer()))
        for rank, (script, answer) in enumerate(zip(scripts, answers, strict=True)):
            (folder / f"rank-{rank}").write_bytes(pickle.dumps(rank))
            (folder / f"script-{rank}").write_text(script)
            (folder / f"answer-{rank}").write_bytes(pickle.dumps(answer))
        monkeypatch.setattr(distributed, "_WORKER", (sys.executable, "-S", "-c", STAND_IN, str(folder)))
        monkeypatch.setattr(distributed, "_BLAME_S", blame_s)
        return DistributedLearner(make_config(processes=2), folder=tmp_path / "weights", grammars=None)

    return make


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.process
async def test_all_processes_hear_the_same_and_the_first_one_answers(learner, tmp_path):
    async with learner(ANSWER, ANSWER, answers=(Answer(result="scores"), Answer())) as held:
        pids = held.pids
        assert await held.score(()) == "scores"
        heard = [pickle.loads((tmp_path / "scripts" / f"heard-{rank}").read_bytes()) for rank in (0, 1)]
        assert heard == [("score", ()), ("score", ())]
    assert running(pids) == []


@pytest.mark.process
async def test_its_processes_get_no_key_of_a_tool(learner, tmp_path, monkeypatch):
    monkeypatch.setenv("FMP_API_KEY", "key-of-a-tool")
    monkeypatch.setenv("HF_TOKEN", "token-of-the-hub")
    tell = f'(folder / "names").write_text(" ".join(os.environ)); {ANSWER}'
    async with learner(tell, ANSWER) as held:
        await held.score(())
    names = (tmp_path / "scripts" / "names").read_text().split()
    assert "HF_TOKEN" in names
    assert "FMP_API_KEY" not in names


@pytest.mark.process
async def test_a_state_is_saved_by_all_processes_into_one_folder(learner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with learner(ANSWER, ANSWER) as held:
        await held.save_state(Path("state"))
        heard = [pickle.loads((tmp_path / "scripts" / f"heard-{rank}").read_bytes()) for rank in (0, 1)]
        assert heard == [("save_state", tmp_path / "state")] * 2


@pytest.mark.process
async def test_a_disk_without_room_in_one_process_arrives_as_a_fault_of_storage(learner):
    full = StorageError("writing failed: No space left on device", fix="free space")
    async with learner(ANSWER, ANSWER, answers=(Answer(), Answer(error=full))) as held:
        with pytest.raises(StorageError, match="No space left"):
            await held.save_state(Path("state"))


@pytest.mark.process
async def test_an_error_of_mcprl_arrives_as_it_was_and_ends_those_who_wait_for_its_process(learner):
    own = ParityError("they differ", fix="use the same dtype")
    async with learner(WAIT, ANSWER, answers=(Answer(), Answer(error=own))) as held:
        pids = held.pids
        with pytest.raises(ParityError) as caught:
            await held.update(())
        assert (caught.value.what, caught.value.fix) == (own.what, own.fix)
        assert running(pids) == []
        with pytest.raises(LearnerLostError, match="they differ"):
            await held.update(())


@pytest.mark.process
async def test_a_process_that_ends_is_named_with_its_exit_code_and_the_end_of_its_log(learner):
    async with learner(ANSWER, DIE, blame_s=DEADLINE_S) as held:
        with pytest.raises(LearnerLostError, match=r"process 1 of 2 .* exit code 3; .*out of luck"):
            await held.read(())


@pytest.mark.process
async def test_a_killed_process_is_blamed_and_not_the_one_that_failed_by_it(learner, tmp_path):
    failing = 'os.open(folder / "alive", os.O_WRONLY); ' + DIE
    killed_later = '(folder / "alive").read_bytes(); ' + KILLED  # to the end, which is that of the other process
    made = learner(failing, killed_later, blame_s=DEADLINE_S)
    os.mkfifo(tmp_path / "scripts" / "alive")
    async with made as held:
        with pytest.raises(LearnerLostError, match=r"process 1 of 2 .* exit code -9.*because memory ran out"):
            await held.read(())


@pytest.mark.process
async def test_a_request_that_is_given_up_ends_the_processes(learner):
    async with learner(WAIT, WAIT) as held:
        pids = held.pids
        asked = asyncio.create_task(held.read(()))
        await asyncio.wait({asked}, timeout=0.3)
        assert not asked.done()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert running(pids) == []


@pytest.mark.process
async def test_a_process_that_ends_before_it_is_ready_fails_the_start(learner, monkeypatch):
    held = learner(ANSWER, ANSWER)
    monkeypatch.setattr(distributed, "_WORKER", (sys.executable, "-S", "-c", "raise SystemExit('no model')"))
    with pytest.raises(LearnerLostError, match="exit code 1; the end of its log: no model"):
        await held.__aenter__()


@pytest.mark.parametrize("packs", range(8))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_pack_is_dealt_to_one_process_and_all_make_as_many_passes(packs, size):
    hands = [deal(list(range(packs)), rank, size) for rank in range(size)]
    assert len({len(hand) for hand in hands}) == 1
    assert sorted(pack for hand in hands for pack in hand if pack is not None) == list(range(packs))
