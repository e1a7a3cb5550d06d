"""What is decoded next: order, parts, what waits for what, and what a lost worker had."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from experiments.sweep.schedule import BatchGroup, Schedule, Task

FULL, SPARSE, OTHER = BatchGroup(0), BatchGroup(1), BatchGroup(2)


def filled(workers: int, sizes: dict[BatchGroup, Sequence[float]], least: int = 1) -> Schedule[str]:
    schedule = Schedule[str](workers, least)
    for group, costs in sizes.items():
        for at, cost in enumerate(costs):
            key = f"{group.config}-{at}"
            schedule.add(Task(key, group, key, cost))
    return schedule


def keys(tasks: Sequence[Task[str]]) -> list[str]:
    return [task.key for task in tasks]


def test_one_worker_is_given_whole_groups_the_dearest_first_and_in_them_the_longest() -> None:
    schedule = filled(1, {SPARSE: [5, 7, 6], OTHER: [4, 5], FULL: [1, 2]})
    jobs = [keys(schedule.take()) for _ in range(3)]
    assert jobs == [["1-1", "1-2", "1-0"], ["2-1", "2-0"], ["0-1", "0-0"]]
    assert schedule.take() == []


def test_what_others_wait_for_comes_first_and_releases_them() -> None:
    schedule = filled(1, {FULL: [1], SPARSE: [50, 50]})
    schedule.hold("0-0", OTHER, "waiting")
    (full,) = schedule.take()
    assert full.key == "0-0"
    assert not schedule.finished(OTHER)
    assert schedule.done(full) == [(OTHER, "waiting")]
    assert schedule.finished(OTHER)
    assert schedule.finished(FULL)
    assert not schedule.finished(SPARSE)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_one_group_is_split_evenly_long_and_short_ones_mixed(workers: int) -> None:
    schedule = filled(workers, {FULL: range(24, 0, -1)})
    parts = [schedule.take() for _ in range(workers)]
    assert schedule.take() == []
    assert {len(part) for part in parts} == {24 // workers}
    work = [sum(task.expected for task in part) for part in parts]
    assert max(work) - min(work) <= 24
    for part in parts:
        costs = [task.expected for task in part]
        assert costs == sorted(costs, reverse=True)


def test_a_lost_job_comes_back_in_halves_before_all_else() -> None:
    schedule = filled(1, {FULL: [4, 3, 2, 1, 1], SPARSE: [1]})
    job = schedule.take()
    schedule.done(job[0])
    assert schedule.lost(job[1:]) == []
    assert [keys(schedule.take()) for _ in range(3)] == [
        ["0-1", "0-2"],
        ["0-3", "0-4"],
        ["1-0"],
    ]


def test_one_that_is_lost_twice_with_nothing_else_at_work_is_given_up() -> None:
    schedule = filled(1, {FULL: [1, 2]})
    assert schedule.lost(schedule.take()) == []  # both together: neither is at fault yet
    assert schedule.lost(schedule.take()) == []
    (other,) = schedule.take()
    assert other.key == "0-0"
    schedule.done(other)
    (bad,) = schedule.lost(schedule.take())
    assert bad.key == "0-1"
    schedule.done(bad)
    assert not schedule.left


@pytest.mark.parametrize("seed", range(20))
def test_every_task_ends_once_whatever_dies(seed: int) -> None:
    rng = random.Random(seed)
    workers = rng.randrange(1, 6)
    schedule = Schedule[str](workers, rng.randrange(1, 5))
    groups = [BatchGroup(number) for number in range(4)]
    full = [Task(f"full{at}", groups[0], "", rng.uniform(1, 9)) for at in range(9)]
    for task in full:
        schedule.add(task)
        for group in groups[1:]:
            schedule.hold(task.key, group, task.key)
    ended: list[str] = []
    jobs: list[list[Task[str]]] = []
    while schedule.left:
        while len(jobs) < workers and (job := schedule.take()):
            jobs.append(job)
        job = jobs.pop(rng.randrange(len(jobs)))
        alive = rng.randrange(len(job) + 1)
        given_up = schedule.lost(job[alive:]) if alive < len(job) else []
        for task in [*job[:alive], *given_up]:
            ended.append(task.key)
            for group, what in schedule.done(task):
                assert task.group == groups[0]
                schedule.add(Task(f"{what}-{group.config}", group, "", rng.uniform(1, 9)))
    assert len(ended) == len(set(ended)) == 9 * 4
    assert all(schedule.finished(group) for group in groups)


def test_what_two_want_is_decoded_once() -> None:
    schedule = Schedule[str](1)
    task = Task("same", BatchGroup(0), "a", 1.0)
    schedule.add(task)
    schedule.add(Task("same", BatchGroup(0), "b", 1.0))
    assert schedule.take() == [task]
    schedule.add(Task("same", BatchGroup(0), "c", 1.0))  # while it is at work
    assert schedule.take() == []
    schedule.done(task)
    assert not schedule.left
