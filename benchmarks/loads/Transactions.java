import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions of the Java client, timed: a mode, then name=value; one line of JSON about what was timed.
 *
 * <pre>
 * produce  bootstrap topic partitions size transactions records aborted warm_up
 * copy     bootstrap topic target group records count
 * many     bootstrap topic partitions ids rounds
 * </pre>
 *
 * Records go to the partitions in turn. A commit is timed from the moment all records are acknowledged, so it is
 * EndTxn alone and not what the producer still had to send.
 */
public final class Transactions {
    private static final int THREADS = 8;

    private final Map<String, String> options = new HashMap<>();
    private final List<Long> commits = new ArrayList<>();

    private Transactions(String[] args) {
        for (String arg : Arrays.copyOfRange(args, 1, args.length)) {
            String[] pair = arg.split("=", 2);
            options.put(pair[0], pair[1]);
        }
    }

    public static void main(String[] args) throws Exception {
        Transactions load = new Transactions(args);
        switch (args[0]) {
            case "produce" -> load.produce();
            case "copy" -> load.copy();
            case "many" -> load.many();
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private void produce() throws Exception {
        int transactions = number("transactions");
        int records = number("records");
        int aborted = number("aborted");
        int warmUp = number("warm_up");
        byte[] value = new byte[number("size")];
        long began = 0;
        long cpu = 0;
        try (KafkaProducer<byte[], byte[]> producer = producer(options.get("topic"))) {
            producer.initTransactions();
            for (int n = -warmUp; n < transactions; n++) {
                if (n == 0) {
                    commits.clear();
                    began = System.nanoTime();
                    cpu = cpuNanos();
                }
                producer.beginTransaction();
                send(producer, value, records);
                boolean commit = Math.floorMod(n, 10) >= aborted;
                end(producer, commit);
            }
            report(began, cpu, transactions, (long) transactions * records);
        }
    }

    private void send(KafkaProducer<byte[], byte[]> producer, byte[] value, int records) {
        int partitions = number("partitions");
        String topic = options.get("topic");
        for (int n = 0; n < records; n++) {
            producer.send(new ProducerRecord<>(topic, n % partitions, null, value));
        }
    }

    private void end(KafkaProducer<byte[], byte[]> producer, boolean commit) {
        producer.flush();
        long asked = System.nanoTime();
        if (commit) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
        long took = System.nanoTime() - asked;
        synchronized (commits) {
            commits.add(took);
        }
    }

    private void copy() throws Exception {
        int count = number("count");
        int records = number("records");
        Properties properties = properties();
        properties.put("group.id", options.get("group"));
        properties.put("isolation.level", "read_committed");
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("max.poll.records", records);
        int copied = 0;
        int transactions = 0;
        try (KafkaProducer<byte[], byte[]> producer = producer(options.get("group"));
             KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(options.get("topic")));
            while (consumer.assignment().isEmpty()) {
                consumer.poll(Duration.ofMillis(10));
            }
            consumer.seekToBeginning(consumer.assignment());
            long began = System.nanoTime();
            long cpu = cpuNanos();
            while (copied < count) {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                producer.beginTransaction();
                int inTransaction = 0;
                while (inTransaction < records && copied < count) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                        producer.send(new ProducerRecord<>(options.get("target"), record.key(), turned(record.value())));
                        offsets.put(
                            new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                        inTransaction++;
                        copied++;
                    }
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                end(producer, true);
                transactions++;
            }
            report(began, cpu, transactions, copied);
        }
    }

    /** The transformation: the bytes from the last to the first. */
    private static byte[] turned(byte[] value) {
        byte[] result = new byte[value.length];
        for (int n = 0; n < value.length; n++) {
            result[n] = value[value.length - 1 - n];
        }
        return result;
    }

    /** All ids have a transaction open before the first one commits. */
    private void many() throws Exception {
        int ids = number("ids");
        int rounds = number("rounds");
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int n = 0; n < ids; n++) {
            producers.add(producer(options.get("topic") + "-" + n));
        }
        forAll(threads, producers, KafkaProducer::initTransactions);
        long began = 0;
        long cpu = 0;
        for (int round = -1; round < rounds; round++) {
            if (round == 0) {
                commits.clear();
                began = System.nanoTime();
                cpu = cpuNanos();
            }
            forAll(threads, producers, producer -> {
                producer.beginTransaction();
                send(producer, new byte[100], number("partitions"));
                producer.flush();
            });
            forAll(threads, producers, producer -> end(producer, true));
        }
        report(began, cpu, ids * rounds, (long) ids * rounds * number("partitions"));
        System.out.flush();
        Runtime.getRuntime().halt(0); // closing a thousand producers one by one takes its time
    }

    private interface Step {
        void of(KafkaProducer<byte[], byte[]> producer);
    }

    private static void forAll(ExecutorService threads, List<KafkaProducer<byte[], byte[]>> producers, Step step)
        throws Exception {
        List<Future<?>> done = new ArrayList<>();
        for (KafkaProducer<byte[], byte[]> producer : producers) {
            done.add(threads.submit(() -> step.of(producer)));
        }
        for (Future<?> each : done) {
            each.get();
        }
    }

    private KafkaProducer<byte[], byte[]> producer(String transactionalId) {
        Properties properties = properties();
        properties.put("transactional.id", transactionalId);
        properties.put("transaction.timeout.ms", 300_000);
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", options.get("bootstrap"));
        return properties;
    }

    private int number(String name) {
        return Integer.parseInt(options.get(name));
    }

    private static long cpuNanos() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private void report(long began, long cpu, int transactions, long records) {
        double seconds = (System.nanoTime() - began) / 1e9;
        commits.sort(null);
        System.out.printf(
            Locale.ROOT,
            "{\"seconds\": %f, \"client_cpu_s\": %f, \"records_s\": %f, \"transactions_s\": %f,"
                + " \"commit_p50_ms\": %f, \"commit_p99_ms\": %f, \"commit_max_ms\": %f}%n",
            seconds, (cpuNanos() - cpu) / 1e9, records / seconds, transactions / seconds,
            commitMs(0.5), commitMs(0.99), commitMs(1));
    }

    private double commitMs(double share) {
        return commits.get((int) Math.round((commits.size() - 1) * share)) / 1e6;
    }
}
