import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of share groups, told what to do by lines on standard input; a line of answer for each.
 *
 *   new NAME TOPIC key=value...        ok
 *   poll NAME MS                       partition offset deliveryCount value, with tabs between all of them
 *   ack NAME PARTITION OFFSET TYPE     ok; the record must be of the last poll, or renewed
 *   commit NAME                        partition=outcome of each partition that was acknowledged
 *   close NAME                         ok
 *
 * What a client throws is answered as "!", its class and what it says.
 */
public final class ShareConsumers {
    private final Map<String, KafkaShareConsumer<String, String>> members = new HashMap<>();
    private final Map<String, ConsumerRecord<String, String>> records = new HashMap<>();

    public static void main(String[] args) throws Exception {
        ShareConsumers all = new ShareConsumers();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = all.answer(line.split(" "));
            } catch (KafkaException | IllegalStateException | IllegalArgumentException thrown) {
                answer = "! " + thrown.getClass().getSimpleName() + " " + thrown.getMessage();
            }
            out.println(answer.replace('\n', ' '));
        }
        Runtime.getRuntime().halt(0);
    }

    private String answer(String[] words) {
        String name = words[1];
        switch (words[0]) {
            case "new":
                return create(name, words);
            case "poll":
                return poll(name, Duration.ofMillis(Long.parseLong(words[2])));
            case "ack":
                ConsumerRecord<String, String> record = records.get(name + " " + words[2] + " " + words[3]);
                members.get(name).acknowledge(record, AcknowledgeType.valueOf(words[4]));
                return "ok";
            case "commit":
                return commit(name);
            case "close":
                members.remove(name).close(Duration.ofSeconds(10));
                return "ok";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private String create(String name, String[] words) {
        Properties properties = new Properties();
        for (int i = 3; i < words.length; i++) {
            String[] pair = words[i].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        KafkaShareConsumer<String, String> member =
            new KafkaShareConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
        member.subscribe(List.of(words[2]));
        members.put(name, member);
        return "ok";
    }

    private String poll(String name, Duration wait) {
        List<String> found = new ArrayList<>();
        for (ConsumerRecord<String, String> record : members.get(name).poll(wait)) {
            records.put(name + " " + record.partition() + " " + record.offset(), record);
            found.add(record.partition() + "\t" + record.offset() + "\t" + record.deliveryCount().get() + "\t" + record.value());
        }
        return String.join("\t", found);
    }

    private String commit(String name) {
        List<String> told = new ArrayList<>();
        Map<TopicIdPartition, Optional<KafkaException>> outcomes = members.get(name).commitSync(Duration.ofSeconds(30));
        outcomes.forEach((partition, thrown) -> told.add(
            partition.partition() + "=" + thrown.map(one -> one.getClass().getSimpleName()).orElse("ok")));
        return String.join(" ", told);
    }
}
