import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words with exactly_once_v2: bootstrap servers, application id, source, target, state directory.
 *
 * Each word of the source goes through a repartition topic and makes one record of the target: the word and how often
 * it came so far. So the target holds 1, 2, 3, ... for each word, if and only if nothing was lost or counted twice.
 * Ends with its standard input.
 */
public final class CountWords {
    private CountWords() {
    }

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, -1);
        properties.put("group.protocol", args[5]);
        if (args[5].equals("classic")) {
            properties.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
            properties.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 500);
        }
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        properties.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10000);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[2], Consumed.with(Serdes.String(), Serdes.String()))
            .selectKey((key, word) -> word)
            .groupByKey(Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(String::valueOf)
            .to(args[3], Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(
            failure -> org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                .REPLACE_THREAD);
        streams.start();
        while (System.in.read() >= 0) {
            continue;
        }
        streams.close(Duration.ofSeconds(20));
    }
}
