"""What a program does to the logs of a node, one operation at a time, and what must come of each.

Each tells the model what may come of it before it begins (`Node.doubt`), and what did when it is
over: all of it, or, after a failure that leaves the directory online, none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.log.append_source import FROM_COORDINATOR
from storage.log.partition_log import PartitionLog
from tests.sim.world import InvariantBroken
from tests.storage.faults import checks
from tests.storage.faults.model import Batch, Content, Possible, Replica, producers_of
from tests.storage.faults.program import KEYS, Node, config_of
from wire.control_records import ControlRecordType, EndTxnMarker
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import patch_for_log
from wire.records import Record, build_batch, end_txn_marker_batch

_PRODUCERS = (1001, 1002, 1003)
_TOPIC_KEYS = (b"a", b"b", b"c", b"d")

Operation = Callable[[Node, Replica, PartitionLog], None]


def operate(node: Node) -> None:
    """One operation, chosen by chance, on a partition whose directory is online."""
    world = node.world
    key = world.random.choice(KEYS)
    replica, log = node.replicas.get(key), node.manager.get(key)
    if replica is None:
        create(node, key)
        return
    if log is None:
        return
    (operation,) = world.random.choices(_OPERATIONS, _WEIGHTS)
    world.tell(f"{key} {operation.__name__}")
    operation(node, replica, log)


# --- appends -------------------------------------------------------------------------------------


def _rows(node: Node, count: int) -> list[Record]:
    random, now_ms = node.world.random, node.clock.wall_ms()
    rows = []
    for _ in range(count):
        node.written += 1
        value = b"%d " % node.written + b"x" * random.choice((0, 30, 150))
        at_ms, key = now_ms - random.choice((0, 0, 5)), random.choice(_TOPIC_KEYS)
        rows.append(Record(-1, at_ms, key, None if random.random() < 0.2 else value))
    return rows


def _append(node: Node, replica: Replica, log: PartitionLog, data: bytes, *source: Any) -> None:
    """As leader: the batch is written whole or not at all."""
    before = replica.content
    stamped = patch_for_log(data, before.end, replica.epoch) + data[16:]
    batch = Batch.of(stamped)
    replica.written.add(batch.identity)
    after = before.and_then([batch])
    node.doubt(replica, Possible(after, before.end))
    worked, info = node.attempt(
        lambda: log.append_as_leader(data, replica.epoch, node.clock.wall_ms(), *source)
    )
    if worked:
        if info.duplicate or info.first_offset != before.end:
            raise InvariantBroken(f"OffsetsFollow: {batch} was told {info}")
        node.world.tell(f"     {batch}")
    conclude(node, replica, log, worked, after, Possible(before, before.end))


def conclude(
    node: Node,
    replica: Replica,
    log: PartitionLog,
    worked: bool,
    after: Content,
    *otherwise: Possible,
) -> None:
    """The operation is over: it worked, or the log is one of `otherwise`, or nobody knows before
    the directory is online again."""
    if worked and log._files_behind.is_any:  # a crash may bring back what is cut off
        node.observe(replica, log, Possible(after, after.end))
    elif worked:
        replica.settle(after)
        if log.log_end_offset != after.end or log.log_start_offset != after.start:
            told = f"{replica.key} is [{log.log_start_offset}, {log.log_end_offset})"
            raise InvariantBroken(f"AllOrNothing: {told}, not {after}")
        node.claim(replica, log)
    elif not node.is_offline(replica.directory):
        node.observe(replica, log, *otherwise)


def append(node: Node, replica: Replica, log: PartitionLog) -> None:
    _append(node, replica, log, build_batch(_rows(node, node.world.between(1, 3))))


def append_run(node: Node, replica: Replica, log: PartitionLog) -> None:
    """Batches that came together: written whole or not at all, or else not taken."""
    random, before = node.world.random, replica.content
    known = producers_of(before.batches)[0]
    calm = [one for one in _PRODUCERS if one in known and known[one].txn_first_offset < 0]
    producer_id = random.choice(calm) if calm and random.random() < 0.6 else -1
    sequence = known[producer_id].last_sequence + 1 if producer_id >= 0 else -1
    at, sent, batches = before.end, [], []
    for _ in range(random.choice((2, 2, 3, 6))):
        rows = _rows(node, node.world.between(1, 2))
        producer: dict[str, int] = {}
        if producer_id >= 0:
            epoch = known[producer_id].epoch
            producer = {"producer_id": producer_id, "producer_epoch": epoch}
            producer["base_sequence"] = sequence
            sequence += len(rows)
        data = build_batch(rows, **producer)  # type: ignore[arg-type]
        sent.append(data)
        batches.append(Batch.of(patch_for_log(data, at, replica.epoch) + data[16:]))
        at = batches[-1].header.next_offset
    replica.written.update(batch.identity for batch in batches)
    after = before.and_then(batches)
    node.doubt(replica, Possible(after, before.end))
    worked, infos = node.attempt(
        lambda: log.append_run_as_leader(sent, replica.epoch, node.clock.wall_ms())
    )
    if worked and infos is None:
        after = before
    elif worked:
        told = [info.first_offset for info in infos]
        if told != [batch.header.base_offset for batch in batches]:
            raise InvariantBroken(f"OffsetsFollow: {batches} were told {told}")
        node.world.tell(f"     {' '.join(map(str, batches))}")
    conclude(node, replica, log, worked, after, Possible(before, before.end))


def append_idempotent(node: Node, replica: Replica, log: PartitionLog) -> None:
    """By a producer that has no transaction open, or has one and goes on with it."""
    random = node.world.random
    producer_id = random.choice(_PRODUCERS)
    # Who sends goes on from a batch that was deleted, too.
    known = producers_of(replica.content.batches)[0].get(producer_id)
    is_open = known is not None and known.txn_first_offset >= 0
    newest = replica.producer_epochs.get(producer_id, -1)
    if known is None or (not is_open and random.random() < 0.2) or known.epoch < newest:
        if is_open:
            return
        epoch, sequence = newest + 1, 0
    else:
        epoch, sequence = known.epoch, known.last_sequence + 1
    replica.producer_epochs[producer_id] = max(newest, epoch)
    data = build_batch(
        _rows(node, node.world.between(1, 2)),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_open or random.random() < 0.6,
    )
    _append(node, replica, log, data)


def repeat(node: Node, replica: Replica, log: PartitionLog) -> None:
    """A producer's last batch once more: it is known, and where it is."""
    batches = replica.content.above(replica.content.start)
    ours = [b for b in batches if b.header.producer_id >= 0 and not b.header.is_control]
    if not ours or replica.is_compacted:
        return
    batch = ours[-1]
    header = batch.header
    known = producers_of(batches)[0][header.producer_id]
    if known.last_offset != header.last_offset:
        return
    data = build_batch(
        [Record(-1, node.clock.wall_ms(), key, value) for _, key, value in batch.rows],
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
    )
    worked, info = node.attempt(
        lambda: log.append_as_leader(data, replica.epoch, node.clock.wall_ms())
    )
    if worked and (not info.duplicate or info.first_offset != header.base_offset):
        raise InvariantBroken(f"Once: {batch} was told {info}")
    before = replica.content
    conclude(node, replica, log, worked, before, Possible(before, before.end))


def end_transaction(node: Node, replica: Replica, log: PartitionLog) -> None:
    producers, _ = producers_of(replica.content.above(replica.content.start))
    open_ones = [p for p, one in producers.items() if one.txn_first_offset >= 0]
    if not open_ones:
        return
    producer_id = node.world.random.choice(open_ones)
    kind = node.world.random.choice((ControlRecordType.ABORT, ControlRecordType.COMMIT))
    # In transaction.version 2 the marker begins the next epoch (KIP-890).
    epoch = producers[producer_id].epoch + node.world.random.choice((0, 1))
    newest = replica.producer_epochs.get(producer_id, -1)
    replica.producer_epochs[producer_id] = max(newest, epoch)
    data = end_txn_marker_batch(
        EndTxnMarker(kind, 0),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp=node.clock.wall_ms(),
    )
    _append(node, replica, log, data, FROM_COORDINATOR)


def follow(node: Node, replica: Replica, log: PartitionLog) -> None:
    """Batches of a leader, of several epochs and with gaps: those before a failure may stay."""
    world, before = node.world, replica.content
    at, epoch = before.end, max(log.latest_epoch, 0)
    batches, data = [], b""
    for _ in range(world.between(1, 5)):
        at += world.random.choice((0, 0, 0, 0, 3))
        if world.chance(0.3) and epoch < replica.epoch:
            epoch = world.between(epoch, replica.epoch)
        plain = build_batch(_rows(node, world.between(1, 2)))
        one = patch_for_log(plain, at, epoch) + plain[16:]
        batches.append(Batch.of(one))
        data += one
        at = batches[-1].header.next_offset
    if batches[0].header.leader_epoch > replica.epoch:
        return
    replica.written.update(batch.identity for batch in batches)
    after = before.and_then(batches)
    node.doubt(replica, Possible(after, before.end))
    worked, _ = node.attempt(lambda: log.append_as_follower(data, replica.epoch))
    world.tell(f"     {' '.join(map(str, batches))}")
    conclude(node, replica, log, worked, after, Possible(after, before.end))


def new_epoch(node: Node, replica: Replica, log: PartitionLog) -> None:
    replica.epoch += 1
    worked, _ = node.attempt(lambda: log.assign_epoch_start(replica.epoch, None))
    before = replica.content
    conclude(node, replica, log, worked, before, Possible(before, before.end))


# --- what changes no batch -----------------------------------------------------------------------


def _keep(node: Node, replica: Replica, log: PartitionLog, what: Callable[[], Any]) -> bool:
    worked, _ = node.attempt(what)
    before = replica.content
    conclude(node, replica, log, worked, before, Possible(before, before.end))
    return worked


def roll(node: Node, replica: Replica, log: PartitionLog) -> None:
    _keep(node, replica, log, log.roll)


def flush(node: Node, replica: Replica, log: PartitionLog) -> None:
    if _keep(node, replica, log, log.flush) and log.flushed_offset < replica.content.end:
        raise InvariantBroken(f"FlushFlushes: {replica.key} only to {log.flushed_offset}")


def flush_and_roll(node: Node, replica: Replica, log: PartitionLog) -> None:
    """The noted recovery point is where a segment ends that was active when it was flushed; most
    often a transaction ended in it."""
    for step in (append_idempotent, end_transaction, flush, note_recovery_points, roll):
        if not node.is_offline(replica.directory):
            step(node, replica, log)


def compact_a_transaction(node: Node, replica: Replica, log: PartitionLog) -> None:
    """One that is open when a segment begins ends in it; compaction may take all of it."""
    if not replica.is_compacted:
        return
    for step in (
        append_idempotent, _fill, roll, end_transaction, _fill, flush, note_recovery_points, roll,
        _wait, clean, _wait, clean, _wait, clean,
    ):  # fmt: skip
        if not node.is_offline(replica.directory):
            step(node, replica, log)


def _fill(node: Node, replica: Replica, log: PartitionLog) -> None:
    """With what stays, so that segments remain two."""
    rows = []
    for _ in range(3):
        node.written += 1
        rows.append(Record(-1, node.clock.wall_ms(), b"%d" % node.written, b"x" * 150))
    _append(node, replica, log, build_batch(rows))


def _wait(node: Node, replica: Replica, log: PartitionLog) -> None:
    """Until the markers' and deletions' time is over."""
    node.world.run_until(node.world.ms + log.config.delete_retention_ms + 1)
    log.update_high_watermark(replica.content.end)
    node.claim(replica, log)


def note_recovery_points(node: Node, replica: Replica, log: PartitionLog) -> None:
    _keep(node, replica, log, node.manager.upkeep.checkpoint_recovery_points)


def replicate(node: Node, replica: Replica, log: PartitionLog) -> None:
    log.update_high_watermark(node.world.between(log.high_watermark, replica.content.end))
    node.claim(replica, log)


def read(node: Node, replica: Replica, log: PartitionLog) -> None:
    worked, found = node.attempt(lambda: _served(log))
    expected = Possible(replica.content, replica.content.end)
    if worked and not expected.explains(found, is_compacted=replica.is_compacted):
        raise InvariantBroken(f"ReadsWhatIsThere: {replica.key} {found}, not {expected.content}")
    if worked and not node.has_struck:
        checks.check_log(log, found, is_quiet=False)


def _served(log: PartitionLog) -> Content:
    """The bytes go from the file to a socket, which ends with a file that cannot be read."""
    try:
        return checks.content_of(log)
    except OSError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def checkpoint(node: Node, replica: Replica, log: PartitionLog) -> None:
    manager = node.manager
    jobs = (
        manager.upkeep.checkpoint_recovery_points,
        manager.upkeep.checkpoint_log_start_offsets,
        manager.upkeep.checkpoint_high_watermarks,
    )
    for job in node.world.random.sample(jobs, node.world.between(1, 3)):
        worked, _ = node.attempt(job)
        if worked and job == manager.upkeep.checkpoint_log_start_offsets:
            for one in node.replicas.values():
                _start_is_noted(node, one)


def clean(node: Node, replica: Replica, log: PartitionLog) -> None:
    """Compaction, of whichever log needs it most."""
    if not replica.is_compacted:
        replica_log = [(r, node.manager.get(k)) for k, r in node.replicas.items() if r.is_compacted]
        if not replica_log or replica_log[0][1] is None:
            return
        replica, log = replica_log[0]
    replica.compacted_to = max(replica.compacted_to, log.active_segment.base_offset)
    _keep(node, replica, log, node.manager.cleaner.clean_filthiest)


# --- taking away ---------------------------------------------------------------------------------


def _start_is_noted(node: Node, replica: Replica) -> None:
    """It is in the checkpoint."""
    log = node.manager.get(replica.key)
    was_noted = not node.has_struck and not node.jobs_wait
    if log is not None and was_noted and len(replica.possible) == 1:
        replica.noted_start = log.log_start_offset


def delete_records(node: Node, replica: Replica, log: PartitionLog) -> None:
    if node.world.chance(0.5):
        replicate(node, replica, log)
    before = replica.content
    offset = node.world.between(before.start, max(log.high_watermark, before.start))
    after = before._replace(start=offset)
    worked, has_moved = node.attempt(lambda: log.increment_log_start_offset(offset))
    node.world.tell(f"     below {offset}")
    conclude(node, replica, log, worked, after, Possible(before, before.end))
    if has_moved:
        _start_is_noted(node, replica)


def retention(node: Node, replica: Replica, log: PartitionLog) -> None:
    world, before = node.world, replica.content
    world.run_until(world.ms + world.between(0, 30_000))
    worked, count = node.attempt(lambda: log.delete_old_segments(node.clock.wall_ms()))
    if log.log_start_offset > max(log.high_watermark, before.start):
        raise InvariantBroken(f"RetentionStops: {log.log_start_offset} > {log.high_watermark}")
    world.tell(f"     {count} segments, starts at {log.log_start_offset}")
    after = before._replace(start=log.log_start_offset)
    conclude(node, replica, log, worked, after, Possible(before, before.end))
    if count:
        _start_is_noted(node, replica)


def truncate(node: Node, replica: Replica, log: PartitionLog) -> None:
    """As a follower of a new leader does, who then writes in an epoch of its own."""
    before = replica.content
    is_usual = replica.is_compacted or node.world.chance(0.6)
    low = log.high_watermark if is_usual else max(before.start - 2, 0)
    low = min(max(low, replica.compacted_to), before.end)
    offset = node.world.between(low, before.end)
    base = log.segments.items[0].base_offset
    cut = before.cut(offset)
    begins_anew = offset < base
    after = Content(offset, (), offset) if begins_anew else cut
    least = cut.end if cut.batches and not begins_anew else min(offset, base)
    node.doubt(replica, Possible(before, least), Possible(after, least))
    replica.lower(least)  # batches are cut whole
    node.world.tell(f"     to {offset}")
    worked, _ = node.attempt(lambda: log.truncate_to(offset))
    replica.epoch += 1
    if worked and not begins_anew:
        kept = cut.above(base)
        end = kept[-1].header.next_offset if kept else log.log_end_offset
        if end > offset and offset < before.end:
            raise InvariantBroken(f"TruncationCuts: {replica.key} at {offset} ends at {end}")
        after = Content(min(before.start, end), kept, end)
    conclude(
        node, replica, log, worked, after, Possible(before, before.end), Possible(after, least)
    )


def begin_anew(node: Node, replica: Replica, log: PartitionLog) -> None:
    """As a follower does that is left behind."""
    if replica.is_compacted:
        return
    before = replica.content
    offset = max(
        0, node.world.random.choice((before.start, before.end)) + node.world.between(-5, 20)
    )
    after = Content(offset, (), offset)
    least = min(log.segments.items[0].base_offset, offset)
    node.doubt(replica, Possible(before, least), Possible(after, offset))
    replica.lower(least)
    node.world.tell(f"     at {offset}")
    worked, _ = node.attempt(lambda: log.truncate_fully_and_start_at(offset))
    replica.epoch += 1
    conclude(
        node, replica, log, worked, after, Possible(before, before.end), Possible(after, offset)
    )


# --- topics and directories ----------------------------------------------------------------------


def create(node: Node, key: Any) -> None:
    world = node.world
    online = [path for path in node.dirs if not node.is_offline(path)]
    if not online:
        return
    directory = world.random.choice(online)
    replica = node.replicas[key] = node.pristine_topic(key, directory)
    world.tell(f"{key} create in {directory.name}")
    worked, log = node.attempt(
        lambda: node.manager.get_or_create(key, replica.topic_id, config_of(key.topic), directory)
    )
    if worked:
        replica.may_be_gone = False
        node.claim(replica, log)
        return
    if not node.is_offline(directory) and (directory / str(key)).exists():
        raise InvariantBroken(f"AllOrNothing: {key} was not created, but there is its directory")
    node.gone[replica.topic_id] = key
    del node.replicas[key]


def delete(node: Node, replica: Replica, log: PartitionLog) -> None:
    replica.may_be_gone = True
    key = replica.key
    worked, _ = node.attempt(lambda: node.manager.delete(key))
    if worked:
        node.gone[replica.topic_id] = key
        del node.replicas[key]
    elif not node.is_offline(replica.directory) and node.manager.get(key) is not log:
        raise InvariantBroken(f"AllOrNothing: {key} is neither deleted nor there")


def move(node: Node, replica: Replica, log: PartitionLog) -> None:
    """To the other directory, as `replication.replicas.log_dir_moves` does it."""
    source = replica.directory
    (target,) = [path for path in node.dirs if path != source]
    if node.is_offline(target):
        return
    futures, key = node.manager.future_logs, replica.key
    worked, _ = node.attempt(lambda: _move(node, replica, log, target))
    current = node.manager.get(key)
    if not worked and current is not None and not node.is_offline(target):
        if current is log:
            futures.delete(key)
            node.world.run_until(node.world.ms)
        else:  # it serves from there, but its name may not be on the disk yet
            worked = node.attempt(lambda: _leave(node, current, log))[0]
    if current is not None:
        replica.directory = current.directory.parent
        before = replica.content
        conclude(node, replica, current, worked, before, Possible(before, before.end))


def _move(node: Node, replica: Replica, log: PartitionLog, target: Path) -> None:
    futures, key = node.manager.future_logs, replica.key
    future = futures.create(key, replica.topic_id, log.config, target)
    if not future.size:
        future.truncate_fully_and_start_at(log.log_start_offset)
    while future.log_end_offset < log.log_end_offset:
        records = log.read(future.log_end_offset, 500, True, log.log_end_offset).records
        assert records is not None
        try:
            data = records.read()
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        future.append_as_follower(data, replica.epoch)
    future.flush()
    futures.prepare(future, log)
    replica.directory = target  # the controller knows before a move ends
    _leave(node, futures.promote(key, log), log)


def _leave(node: Node, promoted: PartitionLog, old: PartitionLog) -> None:
    promoted.flush()
    node.manager.discard(old)


_CHOICES: tuple[tuple[Operation, int], ...] = (
    (append, 10), (append_run, 5), (append_idempotent, 12), (repeat, 2), (end_transaction, 6),
    (follow, 8), (new_epoch, 2), (roll, 4), (flush, 6), (flush_and_roll, 3),
    (compact_a_transaction, 3), (replicate, 6),
    (read, 3), (checkpoint, 5), (clean, 4), (delete_records, 4), (retention, 4), (truncate, 6),
    (begin_anew, 2), (delete, 2), (move, 3),
)  # fmt: skip
_OPERATIONS = [operation for operation, _ in _CHOICES]
_WEIGHTS = [weight for _, weight in _CHOICES]
