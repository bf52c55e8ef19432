"""`sticky`: tasks stay where they are as far as loads allow (PURE; StickyTaskAssignor, ST-20).

An active task goes to who had it, else to who kept a copy of its state, as long as that one has
less than its share; what is left goes to the process with the least load, and there to the member
with the fewest tasks. A standby is never in the process that runs the task or has another copy; it
goes to who had the task, to who kept a copy, or where the load is least. If there are too few
processes, there are fewer copies. Warm-ups are never given.

The result is Apache Kafka's for the same input, move for move
(tests/server/coordinator/streams_groups/test_assignor.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from server.coordinator.java_order import JavaHeap, hash_map_order, string_order
from server.coordinator.streams_groups.tasks import Tasks, grouped, pairs

Task = tuple[str, int]


class TaskMember(NamedTuple):
    """What the assignor knows of a member."""

    process_id: str
    target: Tasks
    """What it had so far."""


class Subtasks(NamedTuple):
    """What it knows of a subtopology."""

    tasks: int
    """How many tasks it has."""
    is_stateful: bool
    """Whether copies of its state can be kept."""


def assign(
    members: Mapping[str, TaskMember], subtopologies: Mapping[str, Subtasks], standbys: int
) -> dict[str, Tasks]:
    """The target of each member; there must be one if there are tasks."""
    if not members:
        return {}
    balance = _Balance(members, subtopologies, standbys)
    balance.assign_active(_tasks(subtopologies, only_stateful=False))
    if standbys > 0:
        balance.assign_standbys(_tasks(subtopologies, only_stateful=True))
    return balance.targets()


def _tasks(subtopologies: Mapping[str, Subtasks], *, only_stateful: bool) -> list[Task]:
    return [
        (subtopology, partition)
        for subtopology, known in subtopologies.items()
        if known.is_stateful or not only_stateful
        for partition in range(known.tasks)
    ]


class _Quota:
    """How many tasks a member may have: who has as many is out of the reckoning for the others."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self._reckon()

    def _reckon(self) -> None:
        self.each = -(-self._tasks // self._members) if self._members else 0

    def given(self, count: int) -> None:
        """A member has as many now."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self._reckon()


class _Process:
    """One process, which may have several members."""

    def __init__(self) -> None:
        self.load = 0.0
        """Tasks for each member."""
        self.tasks: set[Task] = set()
        self.counts: dict[str, int] = {}
        """How many tasks each member has; in the order in which they came."""
        self._by_count: JavaHeap[list[int | str]] | None = None

    def add(self, member_id: str, task: Task) -> int:
        """How many the member has now."""
        self._by_count = None
        return self._add(member_id, task)

    def _add(self, member_id: str, task: Task) -> int:
        self.tasks.add(task)
        self.counts[member_id] += 1
        self.load = len(self.tasks) / len(self.counts)
        return self.counts[member_id]

    def add_to_least_loaded(self, task: Task) -> tuple[str, int]:
        """Who has it now, and how many that are."""
        if len(self.counts) == 1:
            member_id = next(iter(self.counts))
            return member_id, self._add(member_id, task)
        if self._by_count is None:
            order = hash_map_order(self.counts)
            self._by_count = JavaHeap(
                lambda entry: int(entry[1]), ([id_, self.counts[id_]] for id_ in order)
            )
        entry = self._by_count.poll()
        member_id = str(entry[0])
        entry[1] = count = self._add(member_id, task)
        self._by_count.add(entry)
        return member_id, count


class _Balance:
    """One assignment being made."""

    def __init__(
        self,
        members: Mapping[str, TaskMember],
        subtopologies: Mapping[str, Subtasks],
        standbys: int,
    ) -> None:
        self._members = members
        self._standbys = standbys
        active = sum(known.tasks for known in subtopologies.values())
        copies = sum(known.tasks for known in subtopologies.values() if known.is_stateful)
        self._active_quota = _Quota(active, len(members))
        self._quota = _Quota(active + copies * standbys, len(members))
        ordered = sorted(subtopologies, key=string_order)
        self._rank = {id_: rank for rank, id_ in enumerate(ordered)}
        self._processes: dict[str, _Process] = {}
        self._had_active: dict[Task, str] = {}
        self._had_standby: dict[Task, list[str]] = {}
        self._active: dict[str, list[Task]] = {}
        self._standby: dict[str, list[Task]] = {}
        for member_id in hash_map_order(members):
            member = members[member_id]
            process = self._processes.setdefault(member.process_id, _Process())
            process.counts[member_id] = 0
            for task in pairs(member.target.active):
                self._had_active[task] = member_id
            for task in pairs(member.target.standby):
                self._had_standby.setdefault(task, []).append(member_id)

    def targets(self) -> dict[str, Tasks]:
        """What was given to each."""
        return {
            id_: Tasks(grouped(self._active.get(id_, ())), grouped(self._standby.get(id_, ())))
            for id_ in self._members
        }

    # -- active ------------------------------------------------------------------------------

    def assign_active(self, tasks: list[Task]) -> None:
        """Give each to one."""
        tasks.sort(key=self._by_partition)
        tasks = [task for task in tasks if not self._stays(task, self._had_active.get(task))]
        tasks = [
            task
            for task in tasks
            if not self._stays(task, self._least_loaded(self._had_standby.get(task), None))
        ]
        tasks.sort(key=self._by_subtopology)
        by_load = self._by_load()
        for task in tasks:
            process = by_load.poll()
            member_id, count = process.add_to_least_loaded(task)
            self._give_active(member_id, task, count)
            by_load.add(process)

    def _stays(self, task: Task, member_id: str | None) -> bool:
        if member_id is None or self._count(member_id) >= self._active_quota.each:
            return False
        self._give_active(member_id, task, self._process(member_id).add(member_id, task))
        return True

    def _give_active(self, member_id: str, task: Task, count: int) -> None:
        self._active.setdefault(member_id, []).append(task)
        self._active_quota.given(count)
        self._quota.given(count)

    # -- standby -----------------------------------------------------------------------------

    def assign_standbys(self, tasks: list[Task]) -> None:
        """Give as many copies of each as processes allow."""
        tasks.sort(key=self._by_partition, reverse=True)
        left: list[tuple[Task, int]] = []
        for task in tasks:
            for done in range(self._standbys):
                if not self._gets_copy_back(task):
                    left.append((task, self._standbys - done))
                    break
        left.sort(key=lambda one: self._by_subtopology(one[0]), reverse=True)
        by_load = self._by_load()
        for task, copies in left:
            for _ in range(copies):
                if not self._copy_to_least_loaded(by_load, task):
                    break

    def _gets_copy_back(self, task: Task) -> bool:
        """Who ran it, else who kept a copy, keeps one, if it may have more."""
        ran = self._had_active.get(task)
        if ran is not None and not self._has(ran, task) and self._is_below_quota(ran):
            self._give_standby(ran, task, self._process(ran).add(ran, task))
            return True
        kept = self._least_loaded(self._had_standby.get(task), task)
        if kept is not None and self._is_below_quota(kept):
            self._give_standby(kept, task, self._process(kept).add(kept, task))
            return True
        return False

    def _copy_to_least_loaded(self, by_load: JavaHeap[_Process], task: Task) -> bool:
        passed = []
        is_given = False
        while by_load and not is_given:
            process = by_load.poll()
            passed.append(process)
            if task not in process.tasks:
                member_id, count = process.add_to_least_loaded(task)
                self._give_standby(member_id, task, count)
                is_given = True
        for process in reversed(passed):
            by_load.add(process)
        return is_given

    def _give_standby(self, member_id: str, task: Task, count: int) -> None:
        self._standby.setdefault(member_id, []).append(task)
        self._quota.given(count)

    # -- orders ------------------------------------------------------------------------------

    def _by_partition(self, task: Task) -> tuple[int, int]:
        return task[1], self._rank[task[0]]

    def _by_subtopology(self, task: Task) -> tuple[int, int]:
        return self._rank[task[0]], task[1]

    # -- loads -------------------------------------------------------------------------------

    def _process(self, member_id: str) -> _Process:
        return self._processes[self._members[member_id].process_id]

    def _count(self, member_id: str) -> int:
        return self._process(member_id).counts[member_id]

    def _has(self, member_id: str, task: Task) -> bool:
        return task in self._process(member_id).tasks

    def _is_below_quota(self, member_id: str) -> bool:
        return self._count(member_id) < self._quota.each

    def _by_load(self) -> JavaHeap[_Process]:
        order = hash_map_order(self._processes, capacity=len(self._members))
        return JavaHeap(lambda process: process.load, (self._processes[id_] for id_ in order))

    def _least_loaded(self, members: list[str] | None, task: Task | None) -> str | None:
        """Who of these has least, in the process and of its own; with a task, None if the first's
        process has that (sic: the first's, whoever is found)."""
        if not members:
            return None
        found = members[0]
        for member_id in members[1:]:
            if (
                self._process(member_id).load < self._process(found).load
                and (task is None or not self._has(member_id, task))
                and self._count(member_id) < self._count(found)
            ):
                found = member_id
        return found if task is None or not self._has(members[0], task) else None
