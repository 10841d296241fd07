from __future__ import annotations

from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from mosaic.keeper.launch_spec import Grace
from mosaic.keeper.warden import LEFTOVER_GRACE_S, SAMPLE_LATER_S, SAMPLE_S, Order, Warden, next_sample_s

GRACE_STOP, GRACE_TERM = 8.0, 4.0
CONTINUE = Order(SIGCONT, True)
KILL_AGAIN = Order(SIGKILL, True)


def make_warden(seconds: float | None = None, memory_mb: float | None = None) -> Warden:
    return Warden({"seconds": seconds, "memory_mb": memory_mb}, {"stop": GRACE_STOP, "term": GRACE_TERM}, started=100.0)


def test_nothing_is_due_while_nothing_happens() -> None:
    assert make_warden().due_orders(1e9) == []


def test_a_stop_waits_for_the_worker_then_terminates_then_kills_until_the_tree_is_gone() -> None:
    warden = make_warden()
    assert warden.handle_command("stop", False, 110.0) == [CONTINUE]
    assert warden.due_orders(117.9) == []
    assert warden.due_orders(118.0) == [Order(SIGTERM, True, "escalated")]
    assert warden.due_orders(121.9) == []
    assert warden.due_orders(122.0) == [Order(SIGKILL, True, "escalated")]
    assert warden.due_orders(122.1) == [KILL_AGAIN]
    assert warden.due_orders(122.2) == [KILL_AGAIN]
    assert warden.cause == "stop"


def test_a_script_is_interrupted_then_terminated_then_killed() -> None:
    grace_s: Grace = {"stop": GRACE_STOP, "term": GRACE_TERM}
    warden = Warden({"seconds": None, "memory_mb": None}, grace_s, 100.0, is_interrupted_first=True)
    assert warden.handle_command("stop", False, 110.0) == [CONTINUE, Order(SIGINT, True)]
    assert warden.due_orders(117.9) == []
    assert warden.due_orders(118.0) == [Order(SIGTERM, True, "escalated")]
    assert warden.due_orders(122.0) == [Order(SIGKILL, True, "escalated")]


def test_a_second_stop_does_not_restart_the_wait() -> None:
    warden = make_warden()
    warden.handle_command("stop", False, 110.0)
    assert warden.handle_command("stop", False, 117.0) == []
    assert warden.due_orders(118.0)[0].signal == SIGTERM


def test_an_obeyed_stop_ends_the_remaining_processes_soon() -> None:
    warden = make_warden()
    warden.handle_command("stop", False, 110.0)
    warden.on_main_exited(111.0)
    assert warden.due_orders(111.0) == [Order(SIGTERM, True)]
    assert warden.due_orders(111.0 + LEFTOVER_GRACE_S - 0.1) == []
    assert warden.due_orders(111.0 + LEFTOVER_GRACE_S) == [KILL_AGAIN]
    assert warden.cause == "stop"


def test_leftovers_of_a_normal_exit_are_terminated_then_killed_without_a_cause() -> None:
    warden = make_warden()
    warden.on_main_exited(150.0)
    assert warden.due_orders(150.0) == [Order(SIGTERM, True)]
    assert warden.due_orders(150.1) == []
    assert warden.due_orders(152.0) == [KILL_AGAIN]
    assert warden.cause is None


def test_a_main_process_that_exits_after_the_tree_was_terminated_does_not_extend_the_grace() -> None:
    warden = make_warden()
    warden.handle_command("stop", False, 110.0)
    warden.due_orders(118.0)
    warden.on_main_exited(121.0)
    assert warden.due_orders(121.5) == []
    assert warden.due_orders(122.0) == [KILL_AGAIN]


def test_commands_after_the_exit_change_nothing() -> None:
    warden = make_warden()
    warden.on_main_exited(150.0)
    assert warden.handle_command("stop", False, 150.5) == []
    assert warden.handle_command("pause", True, 150.5) == []
    assert warden.terminate(150.5) == []
    assert warden.cause is None


def test_the_time_limit_asks_the_main_process_to_save_then_kills_the_tree() -> None:
    warden = make_warden(seconds=60.0)
    assert warden.due_orders(159.9) == []
    assert warden.due_orders(160.0) == [CONTINUE, Order(SIGTERM, False, "escalated")]
    assert warden.due_orders(167.9) == []
    assert warden.due_orders(168.0) == [Order(SIGKILL, True, "escalated")]
    assert (warden.cause, warden.limit) == ("time_limit", 60.0)


def test_children_that_outlive_a_time_limit_are_terminated_before_they_are_killed() -> None:
    warden = make_warden(seconds=60.0)
    warden.due_orders(160.0)
    warden.on_main_exited(161.0)
    assert warden.due_orders(161.0) == [Order(SIGTERM, True)]
    assert warden.due_orders(163.0) == [KILL_AGAIN]


@pytest.mark.parametrize("by_signal", [True, False])
def test_pauses_do_not_count_towards_the_time_limit(by_signal: bool) -> None:
    warden = make_warden(seconds=60.0)
    warden.handle_command("pause", by_signal, 150.0)
    assert warden.due_orders(1000.0) == []
    warden.handle_command("resume", by_signal, 1000.0)
    assert warden.due_orders(1009.9) == []
    assert warden.due_orders(1010.0)[-1].signal == SIGTERM


def test_a_pause_by_signal_stops_and_continues_the_tree() -> None:
    warden = make_warden()
    assert warden.handle_command("pause", True, 110.0) == [Order(SIGSTOP, True, "paused_by_signal")]
    assert warden.handle_command("pause", True, 111.0) == []
    assert warden.handle_command("resume", True, 112.0) == [Order(SIGCONT, True, "resumed_by_signal")]
    assert warden.handle_command("resume", True, 113.0) == []


def test_a_pause_that_the_worker_handles_itself_needs_no_signal() -> None:
    warden = make_warden()
    assert warden.handle_command("pause", False, 110.0) == []
    assert warden.handle_command("resume", False, 112.0) == []


def test_commands_for_the_worker_and_unknown_ones_are_ignored() -> None:
    warden = make_warden()
    assert warden.handle_command("checkpoint", False, 110.0) == []
    assert warden.handle_command("dance", True, 110.0) == []
    assert warden.due_orders(1e6) == []


def test_a_terminated_keeper_waits_for_the_worker_to_save_before_killing() -> None:
    warden = make_warden()
    assert warden.terminate(110.0) == [CONTINUE, Order(SIGTERM, False, "escalated")]
    assert warden.terminate(110.1) == []
    assert warden.due_orders(118.0) == [Order(SIGKILL, True, "escalated")]
    assert warden.cause == "keeper_terminated"


def test_too_much_memory_is_killed_at_once() -> None:
    warden = make_warden(memory_mb=512.0)
    assert not warden.exceeds_memory(512.0)
    assert warden.exceeds_memory(512.1)
    assert warden.kill_for_memory(110.0) == [Order(SIGKILL, True, "escalated")]
    assert (warden.cause, warden.limit) == ("memory_limit", 512.0)


def test_the_first_cause_is_reported_when_a_stopping_tree_takes_too_much_memory() -> None:
    warden = make_warden(memory_mb=512.0)
    warden.handle_command("stop", False, 110.0)
    assert warden.kill_for_memory(111.0)[0].signal == SIGKILL
    assert (warden.cause, warden.limit) == ("stop", None)


def test_without_a_memory_limit_nothing_exceeds_it() -> None:
    assert not make_warden().exceeds_memory(1e9)


def test_samples_are_frequent_for_ten_minutes() -> None:
    assert next_sample_s(0.3) == next_sample_s(599.0) == SAMPLE_S
    assert next_sample_s(601.0) == SAMPLE_LATER_S


def make_patient_warden() -> Warden:
    grace_s: Grace = {"stop": GRACE_STOP, "term": GRACE_TERM, "save": 600.0}
    return Warden({"seconds": 100.0, "memory_mb": 50.0}, grace_s, started=100.0)


def test_signals_wait_for_a_checkpoint_and_start_over_when_it_is_complete() -> None:
    warden = make_patient_warden()
    warden.handle_command("stop", False, 110.0)
    warden.wait_for_checkpoint(117.0)
    assert (warden.due_orders(118.0), warden.is_awaiting_checkpoint) == ([], False)
    warden.wait_for_checkpoint(300.0)
    assert warden.is_awaiting_checkpoint
    assert warden.due_orders(307.9) == []
    assert warden.due_orders(308.0) == [Order(SIGTERM, True, "escalated")]
    assert warden.due_orders(312.0) == [Order(SIGKILL, True, "escalated")]


def test_a_checkpoint_that_begins_after_sigterm_is_waited_for() -> None:
    warden = make_patient_warden()
    warden.handle_command("stop", False, 110.0)
    assert warden.due_orders(118.0) == [Order(SIGTERM, True, "escalated")]
    warden.wait_for_checkpoint(121.0)
    assert warden.due_orders(128.9) == []
    assert warden.due_orders(129.0) == [Order(SIGKILL, True, "escalated")]


def test_no_checkpoint_is_waited_for_beyond_the_limit() -> None:
    warden = make_patient_warden()
    warden.handle_command("stop", False, 110.0)
    for now in range(111, 1000):
        warden.wait_for_checkpoint(float(now))
        if orders := warden.due_orders(float(now)):
            break
    assert (now, orders) == (710, [Order(SIGTERM, True, "escalated")])
    warden.wait_for_checkpoint(713.0)
    assert warden.due_orders(714.0) == [Order(SIGKILL, True, "escalated")]


def test_a_time_limit_waits_for_a_checkpoint_too() -> None:
    warden = make_patient_warden()
    assert warden.due_orders(200.0) == [CONTINUE, Order(SIGTERM, False, "escalated")]
    warden.wait_for_checkpoint(207.0)
    assert warden.due_orders(214.9) == []
    assert warden.due_orders(215.0) == [Order(SIGKILL, True, "escalated")]


def test_a_lost_lifeline_and_a_memory_limit_wait_for_nothing() -> None:
    lost = make_patient_warden()
    lost.abandon(110.0)
    lost.wait_for_checkpoint(117.0)
    assert lost.due_orders(118.0) == [Order(SIGKILL, True, "escalated")]
    full = make_patient_warden()
    full.handle_command("stop", False, 110.0)
    full.wait_for_checkpoint(111.0)
    assert full.kill_for_memory(112.0) == [Order(SIGKILL, True, "escalated")]


def test_only_a_second_stop_during_the_wait_ends_it() -> None:
    warden = make_patient_warden()
    warden.due_orders(200.0)
    warden.wait_for_checkpoint(209.0)
    assert warden.handle_command("stop", False, 210.0) == []  # the first one: its sender knew nothing of the wait
    warden.wait_for_checkpoint(250.0)
    assert warden.due_orders(257.0) == []
    warden.handle_command("stop", False, 257.0)
    warden.wait_for_checkpoint(257.1)
    assert warden.due_orders(257.2) == [Order(SIGTERM, True, "escalated")]
    assert warden.due_orders(262.0) == [Order(SIGKILL, True, "escalated")]
