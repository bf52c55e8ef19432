package kafka.server.share;

import java.io.*;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;

import org.apache.kafka.clients.consumer.internals.ShareAcquireMode;
import org.apache.kafka.common.*;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.ShareFetchResponseData.AcquiredRecords;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.coordinator.group.GroupConfigManager;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.server.share.acknowledge.ShareAcknowledgementBatch;
import org.apache.kafka.server.share.persister.*;
import org.apache.kafka.server.storage.log.*;
import org.apache.kafka.server.util.timer.TimerTask;
import org.apache.kafka.server.util.timer.TimerTaskEntry;

/**
 * One share partition of Apache Kafka's own, driven by lines on standard input; a line of answer for each.
 *
 * Why here: SharePartition is not public, so this class is of its package. Time, the persister and the timer are the
 * test's: writes wait for "settle", except those that locks make which ran out.
 */
public class SharePartitionDriver {
    static class NoConfigs extends GroupConfigManager {
        NoConfigs() { super(null, null, null); }
        @Override public Optional<GroupConfig> groupConfig(String groupId) { return Optional.empty(); }
    }

    static class Clock implements Time {
        long now = 0;
        public long milliseconds() { return now; }
        public long hiResClockMs() { return now; }
        public long nanoseconds() { return now * 1000000L; }
        public void sleep(long ms) { }
        public void waitObject(Object obj, java.util.function.Supplier<Boolean> c, long d) { }
    }

    static class Alarms implements org.apache.kafka.server.util.timer.Timer {
        final Clock clock; final List<TimerTaskEntry> entries = new ArrayList<>();
        Alarms(Clock clock) { this.clock = clock; }
        public void add(TimerTask task) { entries.add(new TimerTaskEntry(task, clock.now + task.delayMs)); }
        public boolean advanceClock(long ms) { return false; }
        public int size() { return entries.size(); }
        public void close() { }
        void run() {
            while (true) {
                TimerTaskEntry due = null;
                for (TimerTaskEntry e : entries) if (e.expirationMs <= clock.now && (due == null || e.expirationMs < due.expirationMs)) due = e;
                if (due == null) return;
                entries.remove(due);
                if (!due.cancelled()) try { due.timerTask.run(); } catch (NullPointerException e) { }
            }
        }
    }

    static final Uuid ID = new Uuid(1, 2);
    static final TopicIdPartition TP = new TopicIdPartition(ID, new TopicPartition("t", 0));
    static Clock clock; static Alarms alarms; static SharePartition sp;
    static List<PersisterStateBatch> initial; static long initialStart;
    static Deque<CompletableFuture<WriteShareGroupStateResult>> writes = new ArrayDeque<>();
    static StringBuilder written = new StringBuilder();
    static boolean hold;

    static Object call(Object p, java.lang.reflect.Method m, Object[] a) {
        if (m.getName().equals("readState")) {
            return CompletableFuture.completedFuture(new ReadShareGroupStateResult.Builder().setTopicsData(List.of(new TopicData<>(ID, List.of(
                PartitionFactory.newPartitionAllData(0, 0, initialStart, (short) 0, "", initial))))).build());
        }
        if (m.getName().equals("writeState")) {
            PartitionStateBatchData d = ((WriteShareGroupStateParameters) a[0]).groupTopicPartitionData().topicsData().get(0).partitions().get(0);
            written.append(" w ").append(d.startOffset()).append(' ').append(d.deliveryCompleteCount());
            for (PersisterStateBatch b : d.stateBatches())
                written.append(' ').append(b.firstOffset()).append(',').append(b.lastOffset()).append(',').append(b.deliveryState()).append(',').append(b.deliveryCount());
            CompletableFuture<WriteShareGroupStateResult> f = new CompletableFuture<>();
            if (hold) writes.add(f); else f.complete(result((short) 0));
            return f;
        }
        return null;
    }

    static WriteShareGroupStateResult result(short code) {
        return new WriteShareGroupStateResult.Builder().setTopicsData(List.of(new TopicData<>(ID, List.of(
            PartitionFactory.newPartitionErrorData(0, code, ""))))).build();
    }

    static Records records(long[][] spans) {
        List<ByteBuffer> parts = new ArrayList<>(); int size = 0;
        for (long[] s : spans) {
            SimpleRecord[] rs = new SimpleRecord[(int) (s[1] - s[0] + 1)];
            for (int i = 0; i < rs.length; i++) rs[i] = new SimpleRecord(0L, null, new byte[1]);
            ByteBuffer b = MemoryRecords.withRecords(s[0], Compression.NONE, rs).buffer();
            parts.add(b); size += b.remaining();
        }
        ByteBuffer all = ByteBuffer.allocate(size);
        for (ByteBuffer b : parts) all.put(b.duplicate());
        all.flip();
        return MemoryRecords.readableRecords(all);
    }

    static String outcome(CompletableFuture<Void> f) {
        String r;
        if (!f.isDone()) r = "pending";
        else if (f.isCompletedExceptionally()) {
            try { f.join(); r = "?"; } catch (CompletionException e) { r = "error " + Errors.forException(e.getCause()).code(); }
        } else r = "done";
        return r;
    }

    static <T> T bare(Class<T> c) throws Exception {
        java.lang.reflect.Field f = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        f.setAccessible(true);
        return c.cast(((sun.misc.Unsafe) f.get(null)).allocateInstance(c));
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16));
        NoConfigs configs = bare(NoConfigs.class);
        Persister persister = (Persister) Proxy.newProxyInstance(SharePartitionDriver.class.getClassLoader(), new Class<?>[]{Persister.class}, SharePartitionDriver::call);
        String line;
        while ((line = in.readLine()) != null) {
            StringTokenizer t = new StringTokenizer(line);
            String what = t.nextToken(), answer;
            written.setLength(0);
            try { answer = run(what, t, configs, persister); }
            catch (Throwable e) { answer = "crash " + e; }
            out.println(answer + written);
            out.flush();
        }
    }

    static long l(StringTokenizer t) { return Long.parseLong(t.nextToken()); }

    static String run(String what, StringTokenizer t, NoConfigs configs, Persister persister) throws Exception {
        switch (what) {
            case "new": {
                clock = new Clock(); alarms = new Alarms(clock); writes.clear(); hold = true;
                int max = (int) l(t), deliveries = (int) l(t), lock = (int) l(t);
                initialStart = l(t); initial = new ArrayList<>();
                while (t.hasMoreTokens()) initial.add(new PersisterStateBatch(l(t), l(t), (byte) l(t), (short) l(t)));
                sp = new SharePartition("g", TP, 0, max, deliveries, lock, alarms, clock, persister, null, configs, null);
                return outcome(sp.maybeInitialize());
            }
            case "next":
                return sp.nextFetchOffset() + " " + sp.canAcquireRecords() + " " + sp.startOffset();
            case "acq": {
                String member = t.nextToken(); ShareAcquireMode mode = ShareAcquireMode.forId((byte) l(t));
                int batch = (int) l(t), max = (int) l(t); long offset = l(t);
                List<long[]> spans = new ArrayList<>();
                while (t.hasMoreTokens()) spans.add(new long[]{l(t), l(t)});
                FetchPartitionData d = new FetchPartitionData(Errors.NONE, 1 << 30, 0, records(spans.toArray(new long[0][])),
                    Optional.empty(), OptionalLong.empty(), Optional.empty(), OptionalInt.empty(), false);
                StringBuilder r = new StringBuilder("got");
                for (AcquiredRecords a : sp.acquire(member, mode, batch, max, offset, d, FetchIsolation.HIGH_WATERMARK).acquiredRecords())
                    r.append(' ').append(a.firstOffset()).append(',').append(a.lastOffset()).append(',').append(a.deliveryCount());
                return r.toString();
            }
            case "ack": {
                String member = t.nextToken();
                List<ShareAcknowledgementBatch> acks = new ArrayList<>();
                while (t.hasMoreTokens()) {
                    long first = l(t), last = l(t); int n = (int) l(t);
                    List<Byte> types = new ArrayList<>();
                    for (int i = 0; i < n; i++) types.add((byte) l(t));
                    acks.add(new ShareAcknowledgementBatch(first, last, types));
                }
                return outcome(sp.acknowledge(member, acks));
            }
            case "combine": {
                List<PersisterStateBatch> soFar = new ArrayList<>(), more = new ArrayList<>();
                long start = l(t), n = l(t);
                while (t.hasMoreTokens()) (n-- > 0 ? soFar : more).add(new PersisterStateBatch(l(t), l(t), (byte) l(t), (short) l(t)));
                StringBuilder r = new StringBuilder("combined");
                for (PersisterStateBatch b : new PersisterStateBatchCombiner(soFar, more, start).combineStateBatches())
                    r.append(' ').append(b.firstOffset()).append(',').append(b.lastOffset()).append(',').append(b.deliveryState()).append(',').append(b.deliveryCount());
                return r.toString();
            }
            case "rel": return outcome(sp.releaseAcquiredRecords(t.nextToken()));
            case "settle":
                try { writes.poll().complete(result((short) l(t))); } catch (NullPointerException e) { }
                return "settled";
            case "time":
                clock.now += l(t); hold = false; alarms.run(); hold = true;
                return "time";
            default: return "unknown";
        }
    }
}
