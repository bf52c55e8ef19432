import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Scanner;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Apache Kafka's assignor of share groups: a line of numbers in, a line of numbers out.
 *
 * In: topics, and of each its partitions and a bit for each that may be assigned; whether all members subscribe to the
 * same; members, and of each how many topics it subscribes to and which, how many partitions it has and which (topic,
 * partition). Out: member, topic, partition.
 */
public final class ShareAssignorDriver {
    record Topics(Map<Uuid, Integer> counts) implements SubscribedTopicDescriber {
        public int numPartitions(Uuid topicId) {
            return counts.getOrDefault(topicId, -1);
        }

        public Set<String> racksForPartition(Uuid topicId, int partition) {
            return Set.of();
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(new Scanner(line)));
        }
    }

    private static String answer(Scanner in) {
        Map<Uuid, Integer> counts = new LinkedHashMap<>();
        Map<Uuid, Set<Integer>> assignable = new LinkedHashMap<>();
        int topics = in.nextInt();
        for (int i = 0; i < topics; i++) {
            counts.put(new Uuid(0, i), in.nextInt());
            int bits = in.nextInt();
            Set<Integer> allowed = new LinkedHashSet<>();
            for (int partition = 0; partition < Integer.SIZE; partition++) {
                if ((bits >> partition & 1) == 1) {
                    allowed.add(partition);
                }
            }
            assignable.put(new Uuid(0, i), allowed);
        }
        SubscriptionType type = in.nextInt() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        int count = in.nextInt();
        for (int i = 0; i < count; i++) {
            Set<Uuid> subscribed = new LinkedHashSet<>();
            for (int left = in.nextInt(); left > 0; left--) {
                subscribed.add(new Uuid(0, in.nextInt()));
            }
            Map<Uuid, Set<Integer>> held = new LinkedHashMap<>();
            for (int left = in.nextInt(); left > 0; left--) {
                held.computeIfAbsent(new Uuid(0, in.nextInt()), k -> new LinkedHashSet<>()).add(in.nextInt());
            }
            members.put("m" + i, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.empty(), subscribed, new Assignment(held)));
        }
        GroupAssignment found = new SimpleAssignor().assign(
            new GroupSpecImpl(members, type, Collections.emptyMap(), Optional.of(assignable)), new Topics(counts));
        StringBuilder told = new StringBuilder();
        new TreeMap<>(found.members()).forEach((member, assignment) ->
            assignment.partitions().forEach((topic, partitions) -> new TreeSet<>(partitions).forEach(partition ->
                told.append(member.substring(1)).append(' ').append(topic.getLeastSignificantBits()).append(' ')
                    .append(partition).append(' '))));
        return told.toString();
    }
}
