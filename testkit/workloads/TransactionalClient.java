import java.io.BufferedWriter;
import java.io.FileWriter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.StringJoiner;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * One life of a transactional client: what transactional_client.py does with librdkafka, with Apache Kafka's own.
 *
 * Arguments and behaviour are that module's; the events are those of history.py, one JSON a line.
 */
public final class TransactionalClient {
    private static final int PAUSE_MS = 20;
    private static final double ABORTED_SHARE = 0.2;
    private static final int RECORDS_MAX = 4;

    private final String topic;
    private final String who;
    private final List<TopicPartition> places = new ArrayList<>();
    private final BufferedWriter history;
    private final Random chance;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private int sent = 0;
    private int transactions = 0;
    private static volatile boolean ending = false;

    private TransactionalClient(String[] args) throws Exception {
        topic = args[1];
        who = args[3];
        for (int i = 0; i < Integer.parseInt(args[2]); i++) {
            places.add(new TopicPartition(topic, i));
        }
        history = new BufferedWriter(new FileWriter(args[5], true));
        chance = new Random(who.hashCode());
        String name = who.substring(0, who.indexOf('/'));
        Properties common = new Properties();
        common.put("bootstrap.servers", args[0]);
        common.put("reconnect.backoff.max.ms", "500");
        Properties producing = (Properties) common.clone();
        producing.put("transactional.id", name);
        producing.put("transaction.timeout.ms", "8000");
        producing.put("max.block.ms", "10000");
        producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer());
        Properties consuming = (Properties) common.clone();
        consuming.put("group.id", name);
        consuming.put("isolation.level", args[4]);
        consuming.put("enable.auto.commit", "false");
        consuming.put("auto.offset.reset", "none");
        consuming.put("fetch.max.wait.ms", "100");
        consuming.put("default.api.timeout.ms", "10000");
        consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer());
    }

    public static void main(String[] args) throws Exception {
        TransactionalClient client = new TransactionalClient(args);
        Thread listener = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException closed) {
                // the same
            }
            ending = true;
        });
        listener.setDaemon(true);
        listener.start();
        int code = 0;
        try {
            client.start();
            while (!ending) {
                client.transact();
                say("ended");
                Thread.sleep(PAUSE_MS);
            }
        } catch (KafkaException useless) {
            useless.printStackTrace();
            code = 1;
        }
        client.flush();
        Runtime.getRuntime().halt(code);
    }

    private void start() throws Exception {
        retry("init_transactions", producer::initTransactions);
        consumer.assign(places);
        Map<TopicPartition, Long> from = new HashMap<>();
        retry("committed", () -> {
            Map<TopicPartition, OffsetAndMetadata> stored = consumer.committed(new HashSet<>(places));
            for (TopicPartition place : places) {
                from.put(place, stored.get(place) == null ? 0L : stored.get(place).offset());
            }
        });
        goTo(from);
    }

    /** One transaction; throws what makes this client useless. */
    private void transact() throws Exception {
        transactions++;
        add("Begin", "%d", transactions);
        Map<TopicPartition, Long> stood = positions();
        String outcome = "info";
        String error = "";
        try {
            producer.beginTransaction();
            KafkaException failed = fill();
            if (failed == null && chance.nextDouble() >= ABORTED_SHARE) {
                try {
                    retry("commit_transaction", producer::commitTransaction);
                    outcome = "ok";
                } catch (KafkaException refused) {
                    failed = abortable(refused);
                }
            }
            if (!outcome.equals("ok")) {
                retry("abort_transaction", producer::abortTransaction);
                outcome = "fail";
                error = String.valueOf(failed);
                goTo(stood);
            }
        } catch (KafkaException useless) {
            error = useless.toString();
            throw useless;
        } finally {
            add("Ended", "%d, \"%s\", \"%s\"", transactions, outcome, plain(error));
            flush();
        }
    }

    /** Everything before the end; what then obliges to abort. */
    private KafkaException fill() throws Exception {
        try {
            poll();
            for (int count = 1 + chance.nextInt(RECORDS_MAX); count > 0; count--) {
                send();
            }
            poll();
            Map<TopicPartition, OffsetAndMetadata> reached = new HashMap<>();
            StringJoiner told = new StringJoiner(", ");
            positions().forEach((place, at) -> {
                reached.put(place, new OffsetAndMetadata(at));
                told.add("[" + place.partition() + ", " + at + "]");
            });
            flush();
            say("send_offsets_to_transaction");
            producer.sendOffsetsToTransaction(reached, consumer.groupMetadata());
            add("Positions", "[%s]", told);
            return null;
        } catch (KafkaException failed) {
            return abortable(failed);
        }
    }

    private void poll() throws Exception {
        StringJoiner records = new StringJoiner(", ");
        records.setEmptyValue("");
        try {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(20))) {
                records.add("[" + record.partition() + ", " + record.offset() + ", \"" + record.value() + "\"]");
            }
        } catch (OffsetOutOfRangeException outside) {
            add("ClientError", "\"%s\"", plain(outside.toString()));
        }
        if (records.length() > 0) {
            add("Polled", "[%s]", records);
        }
    }

    private void send() throws Exception {
        int number = sent++;
        int partition = chance.nextInt(places.size());
        add("Send", "%d, %d", number, partition);
        producer.send(new ProducerRecord<>(topic, partition, null, who + ":" + number), (place, error) -> {
            if (error == null) {
                add("Sent", "%d, \"ok\", %d, \"\"", number, place.offset());
            } else {
                add("Sent", "%d, \"info\", null, \"%s\"", number, plain(error.toString()));
            }
        });
    }

    private Map<TopicPartition, Long> positions() {
        Map<TopicPartition, Long> found = new HashMap<>();
        for (TopicPartition place : places) {
            found.put(place, consumer.position(place));
        }
        return found;
    }

    private void goTo(Map<TopicPartition, Long> from) {
        StringJoiner partitions = new StringJoiner(", ");
        from.forEach((place, offset) -> {
            consumer.seek(place, offset);
            partitions.add(String.valueOf(place.partition()));
        });
        add("Assigned", "[%s]", partitions);
    }

    /** Whether the transaction may be aborted after this, as KafkaProducer's documentation tells. */
    private static KafkaException abortable(KafkaException failed) {
        if (failed instanceof ProducerFencedException || failed instanceof OutOfOrderSequenceException
            || failed instanceof AuthorizationException || failed instanceof UnsupportedVersionException
            || failed instanceof InvalidProducerEpochException) {
            throw failed;
        }
        return failed;
    }

    /** A call that timed out is to be repeated. */
    private void retry(String name, Runnable call) throws Exception {
        flush();
        say(name);
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException late) {
                Thread.sleep(50);
            }
        }
    }

    private static void say(String call) {
        System.out.println(call);
    }

    private synchronized void add(String kind, String fields, Object... values) {
        try {
            history.write(String.format("[\"%s\", %d, \"%s\", %s]%n", kind, System.nanoTime(), who,
                String.format(fields, values)));
        } catch (java.io.IOException full) {
            throw new java.io.UncheckedIOException(full);
        }
    }

    private synchronized void flush() throws Exception {
        history.flush();
    }

    private static String plain(String text) {
        return text.replaceAll("[^A-Za-z0-9 .:,()_-]", " ");
    }
}
