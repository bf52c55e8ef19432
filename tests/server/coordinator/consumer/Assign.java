import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * What Apache Kafka's assignors make of groups, one a line of standard input:
 *
 * <pre>
 * uniform|range homogeneous|heterogeneous topic=count,... member=instance=topic,...=topic:0.1.2,... ...
 * </pre>
 *
 * Topics are ids as Uuid writes them. Answered by a line `member=topic:0.1.2,... ...`, names and ids in order.
 */
public final class Assign {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.append(answer(line.split(" "))).append('\n');
        }
        System.out.print(out);
    }

    private static String answer(String[] words) {
        ConsumerGroupPartitionAssignor assignor = words[0].equals("range") ? new RangeAssignor() : new UniformAssignor();
        Map<Uuid, Integer> counts = new HashMap<>();
        for (String topic : items(words[2], ",")) {
            String[] pair = topic.split("=");
            counts.put(Uuid.fromString(pair[0]), Integer.parseInt(pair[1]));
        }
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (int n = 3; n < words.length; n++) {
            String[] parts = words[n].split("=", -1);
            Set<Uuid> topics = new LinkedHashSet<>();
            for (String topic : items(parts[2], ",")) {
                topics.add(Uuid.fromString(topic));
            }
            Map<Uuid, Set<Integer>> target = new LinkedHashMap<>();
            for (String topic : items(parts[3], ",")) {
                String[] pair = topic.split(":");
                Set<Integer> partitions = new LinkedHashSet<>();
                for (String partition : pair[1].split("\\.")) {
                    partitions.add(Integer.parseInt(partition));
                    owners.computeIfAbsent(Uuid.fromString(pair[0]), id -> new HashMap<>())
                        .put(Integer.parseInt(partition), parts[0]);
                }
                target.put(Uuid.fromString(pair[0]), partitions);
            }
            Optional<String> instance = parts[1].isEmpty() ? Optional.empty() : Optional.of(parts[1]);
            members.put(parts[0], new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), instance, topics, new Assignment(Collections.unmodifiableMap(target))));
        }
        GroupSpec spec = new GroupSpecImpl(members, SubscriptionType.valueOf(words[1].toUpperCase()), owners);
        GroupAssignment assigned = assignor.assign(spec, new Counts(counts));
        return text(assigned.members());
    }

    private static String[] items(String text, String separator) {
        return text.isEmpty() ? new String[0] : text.split(separator);
    }

    private static String text(Map<String, MemberAssignment> assigned) {
        StringBuilder out = new StringBuilder();
        for (Map.Entry<String, MemberAssignment> member : new TreeMap<>(assigned).entrySet()) {
            TreeSet<String> topics = new TreeSet<>();
            for (Map.Entry<Uuid, Set<Integer>> topic : member.getValue().partitions().entrySet()) {
                StringBuilder one = new StringBuilder(topic.getKey() + ":");
                for (Integer partition : new TreeSet<>(topic.getValue())) {
                    one.append(partition).append('.');
                }
                topics.add(one.toString());
            }
            out.append(member.getKey()).append('=').append(String.join(",", topics)).append(' ');
        }
        return out.toString();
    }

    private record Counts(Map<Uuid, Integer> counts) implements SubscribedTopicDescriber {
        @Override
        public int numPartitions(Uuid topicId) {
            return counts.getOrDefault(topicId, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topicId, int partition) {
            return Set.of();
        }
    }
}
