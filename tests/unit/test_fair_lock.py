"""The lock of the records."""

from __future__ import annotations

import threading

from mosaic.trainer.fair_lock import FairLock


def test_waiting_threads_get_the_lock_in_turn_however_often_another_takes_it() -> None:
    """F44: a call that changes a run waits for one part of a journal, not for all of it."""
    lock = FairLock()
    turns: list[int] = []
    threads = []
    with lock:
        for number in range(5):
            threads.append(threading.Thread(target=take, args=(lock, turns, number)))
            threads[-1].start()
            while len(lock._waiting) <= number:
                pass
    with lock, lock:
        turns.append(99)
    for thread in threads:
        thread.join()
    assert turns == [0, 1, 2, 3, 4, 99]


def take(lock: FairLock, turns: list[int], number: int) -> None:
    with lock:
        turns.append(number)
