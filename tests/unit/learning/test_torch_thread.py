"""All that a learner computes, it computes in one thread."""

import asyncio
import threading

from mcprl.learning.learner import in_torch_thread


async def test_whatever_is_asked_for_at_once_is_done_in_one_thread_and_in_order():
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        return threading.get_ident()

    threads = await asyncio.gather(*(in_torch_thread(work, number) for number in range(50)))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    assert done == list(range(50))


async def test_a_learner_reads_updates_and_saves_there(make_learner, tmp_path, monkeypatch):
    learner = make_learner()
    there = await in_torch_thread(threading.get_ident)
    seen: list[int] = []
    for method in ("_read", "_update", "_save_state"):
        monkeypatch.setattr(learner, method, lambda *_: seen.append(threading.get_ident()))
    await learner.read(())
    await learner.update(None)
    await learner.save_state(tmp_path)
    assert seen == [there] * 3
