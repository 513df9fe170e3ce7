"""Tasks in threads of one process: results in order, a memory budget, no work behind an error."""

from __future__ import annotations

import threading

import pytest

from tideline_table.action.side_by_side import MemoryBudget, run_side_by_side


def test_results_have_the_order_of_the_tasks_and_the_caller_counts_them():
    counted: list[str] = []
    both = threading.Barrier(2, timeout=10)  # passes only if two tasks run at the same time

    def work(number: int) -> int:
        both.wait()
        return number * 10

    found = run_side_by_side([1, 2, 3, 4], work, lambda: counted.append(threading.current_thread().name), threads=2)
    assert found == [10, 20, 30, 40]
    assert counted == [threading.current_thread().name] * 4


def test_an_error_ends_the_run_once_running_tasks_have_ended():
    begun = threading.Event()
    finished: list[int] = []

    def work(number: int) -> None:
        if number == 0:
            begun.wait(10)
            raise ValueError("task 0")
        begun.set()
        finished.append(number)

    with pytest.raises(ValueError, match="task 0"):
        run_side_by_side([0, 1], work, threads=2)
    assert finished == [1]


def test_tasks_wait_for_memory_and_a_task_beyond_the_budget_runs_alone():
    memory = MemoryBudget(100)
    held: list[int] = []
    most: list[int] = []

    def work(size_bytes: int) -> None:
        with memory.hold(size_bytes):
            held.append(size_bytes)
            most.append(sum(min(size, 100) for size in held))
            held.remove(size_bytes)

    run_side_by_side([60, 30, 500, 60, 40, 500, 10], work, threads=4)
    assert len(most) == 7
    assert max(most) <= 100
