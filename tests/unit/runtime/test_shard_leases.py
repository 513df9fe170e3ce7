import random

import pytest

from tideline_locks import InProcessLockProvider, LockUnreachable, StorageLockProvider
from tideline_locks.in_process import LeaseTable
from tideline_runtime.metrics import SHARD_MEMBERS, SHARD_MOVES, SHARDS_HELD, Metrics
from tideline_runtime.shard_leases import LeasedShards
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage

TTL_S = 15.0
TICK_S = 5.0


class Provider(InProcessLockProvider):
    """The leases of a process that may be cut off from them."""

    is_away = False
    asked = 0

    def _read(self, name):
        self.asked += 1
        if self.is_away:
            raise LockUnreachable("away")
        return super()._read(name)

    def _names(self):
        if self.is_away:
            raise LockUnreachable("away")
        return super()._names()


class Instances:
    """Instances of one service on one store and clock; those that are running renew and tick whenever time passes."""

    def __init__(self, clock, provider_of, count=8):
        self.clock = clock
        self.count = count
        self.provider_of = provider_of
        self.running = []

    def start(self, name, *, count=None, group="g"):
        self.clock.advance(0.001)  # so that instances join one after the other
        shards = LeasedShards(
            self.provider_of(),
            self.clock,
            group=group,
            count=count or self.count,
            instance=name,
            ttl_s=TTL_S,
            metrics=Metrics(name),
            renews=False,
        )
        self.running.append(shards)
        shards.balance()
        return shards

    def pass_time(self, duration_s, step_s=TICK_S):
        for _ in range(round(duration_s / step_s)):
            self.clock.advance(step_s)
            for shards in list(self.running):
                shards.renew()
                shards.balance()

    def settle(self):
        self.pass_time(2 * TICK_S)

    def pause(self, shards):
        """From now on it neither renews nor ticks: a process that died, or stands still."""
        self.running.remove(shards)


@pytest.fixture
def instances():
    clock = ManualClock()
    table = LeaseTable(clock)
    return Instances(clock, lambda: Provider(clock=clock, table=table))


def parts(*instances):
    return sorted((len(shards.held()) for shards in instances), reverse=True)


def check_divided(count, *instances):
    held = [shard for shards in instances for shard in shards.held()]
    assert sorted(held) == list(range(count))


def test_the_first_instance_takes_everything_and_joins_get_their_part(instances):
    first = instances.start("a")
    assert first.held() == tuple(range(8))
    second = instances.start("b")
    assert second.held() == ()
    instances.settle()
    check_divided(8, first, second)
    assert parts(first, second) == [4, 4]
    third = instances.start("c")
    instances.settle()
    check_divided(8, first, second, third)
    assert parts(first, second, third) == [3, 3, 2]


def test_a_stop_frees_the_shards_for_the_next_tick(instances):
    first, second = instances.start("a"), instances.start("b")
    instances.settle()
    instances.pause(first)
    first.close()
    assert first.held() == ()
    instances.pass_time(TICK_S)
    check_divided(8, second)


def test_the_shards_of_a_dead_instance_are_held_again_after_a_lease_and_a_tick(instances):
    first, second, third = (instances.start(name) for name in "abc")
    instances.pass_time(4 * TICK_S)
    instances.pause(first)
    instances.pass_time(TTL_S + TICK_S)
    check_divided(8, second, third)
    assert parts(second, third) == [4, 4]


def test_an_instance_that_was_paused_holds_nothing_and_takes_other_shards_later(instances):
    first, second = instances.start("a"), instances.start("b")
    instances.settle()
    terms = {shard: first.term(shard) for shard in first.held()}
    instances.pause(first)
    instances.pass_time(TTL_S)
    assert all(first.term(shard) is None for shard in range(8))
    instances.pass_time(TICK_S)
    check_divided(8, second)
    instances.running.append(first)
    instances.settle()
    instances.settle()
    check_divided(8, first, second)
    assert parts(first, second) == [4, 4]
    assert not set(terms.values()) & {first.term(shard) for shard in first.held()}


def test_a_partitioned_instance_stops_by_its_own_clock(instances):
    first, second = instances.start("a"), instances.start("b")
    instances.settle()
    first._provider.is_away = True
    instances.running.remove(first)
    for _ in range(3):
        instances.pass_time(TICK_S)
        first.renew()
        with pytest.raises(LockUnreachable):
            first.balance()
    assert first.held() == ()
    instances.pass_time(TICK_S)
    check_divided(8, second)


def test_renewals_come_faster_while_the_store_is_away(instances):
    first = instances.start("a")
    assert first.renew() == TTL_S / 3
    first._provider.is_away = True
    assert first.renew() == TTL_S / 10


def test_a_short_outage_of_the_store_moves_nothing(instances):
    first, second = instances.start("a"), instances.start("b")
    instances.settle()
    before = first.held(), second.held()
    for shards in (first, second):
        shards._provider.is_away = True
    instances.clock.advance(TTL_S / 2)
    for shards in (first, second):
        shards.renew()
        shards._provider.is_away = False
    instances.settle()
    assert (first.held(), second.held()) == before


def test_a_shard_that_was_given_up_is_free_for_the_next_balance(instances):
    first = instances.start("a")
    old = first.term(3)
    assert first.give_up(3, "fenced")
    assert first.term(3) is None
    instances.settle()
    assert first.term(3) not in (None, old)


def test_a_stop_without_the_store_asks_it_once(instances):
    first = instances.start("a")
    first._provider.is_away = True
    asked = first._provider.asked
    instances.pause(first)
    first.close()
    assert (first.held(), first._provider.asked - asked) == ((), 1)
    second = instances.start("b")
    instances.pass_time(TTL_S + TICK_S)
    check_divided(8, second)


def test_more_instances_than_shards_stand_by(instances):
    instances.count = 2
    first, second, third = (instances.start(name) for name in "abc")
    instances.settle()
    assert parts(first, second, third) == [1, 1, 0]
    holder = next(shards for shards in (first, second) if shards.held())
    instances.pause(holder)
    holder.close()
    instances.settle()
    check_divided(2, *instances.running)


def test_an_instance_with_another_count_waits_until_the_others_are_gone(instances):
    first = instances.start("a")
    second = instances.start("b", count=5)
    instances.pass_time(6 * TICK_S)
    assert (first.held(), second.held()) == (tuple(range(8)), ())
    instances.pause(first)
    instances.pass_time(TTL_S + 2 * TICK_S)
    assert second.held() == tuple(range(5))


def test_groups_do_not_share(instances):
    first, other = instances.start("a"), instances.start("b", group="other")
    assert first.held() == other.held() == tuple(range(8))


def test_metrics_count_what_moved(instances):
    first = instances.start("a")
    second = instances.start("b")
    instances.settle()
    moved = {change: first._metrics.value(SHARD_MOVES, change=change) for change in ("taken", "given", "lost")}
    assert moved == {"taken": 8, "given": 4, "lost": 0}
    assert (first._metrics.value(SHARDS_HELD), first._metrics.value(SHARD_MEMBERS)) == (4, 2)
    instances.pause(second)
    instances.clock.advance(TTL_S)
    second.balance()
    assert second._metrics.value(SHARD_MOVES, change="lost") == 4


def test_leases_in_storage_divide_shards_too():
    clock, storage = ManualClock(), MemoryStorage()
    instances = Instances(clock, lambda: StorageLockProvider(storage, clock=clock), count=3)
    first, second = instances.start("a"), instances.start("b")
    instances.settle()
    check_divided(3, first, second)
    instances.pause(first)
    instances.pass_time(TTL_S + 2 * TICK_S)
    check_divided(3, second)


@pytest.mark.parametrize("seed", range(10))
def test_no_shard_ever_has_two_holders_and_none_stays_free(instances, seed):
    choose = random.Random(seed)
    paused = []
    for step in range(40):
        act = choose.choice(("start", "pause", "resume", "stop", "time", "time", "time"))
        if act == "start" and len(instances.running) < 4:
            instances.start(f"i{step}")
        elif act == "pause" and instances.running:
            paused.append(choose.choice(instances.running))
            instances.pause(paused[-1])
        elif act == "resume" and paused:
            instances.running.append(paused.pop(choose.randrange(len(paused))))
        elif act == "stop" and instances.running:
            stopped = choose.choice(instances.running)
            instances.pause(stopped)
            stopped.close()
        else:
            instances.clock.advance(choose.uniform(0, TTL_S / 2))
        for shards in choose.sample(instances.running, len(instances.running)):
            if choose.random() < 0.8:
                shards.renew()
            shards.balance()
            held = [shard for other in (*instances.running, *paused) for shard in other.held()]
            assert len(held) == len(set(held))
    if not instances.running:
        instances.start("last")
    instances.pass_time(TTL_S + TICK_S)
    check_divided(8, *instances.running)
