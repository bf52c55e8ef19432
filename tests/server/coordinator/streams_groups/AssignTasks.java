import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentMemberSpec;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.assignor.TopologyDescriber;

/**
 * What Apache Kafka's assignor of tasks makes of groups, one a line of standard input:
 *
 * <pre>
 * standbys subtopology=count=stateful,... member=process=subtopology:0.1.2,...=subtopology:0.1.2,... ...
 * </pre>
 *
 * A member's tasks are its active ones, then its standbys. Answered by a line of members in the same form, in order.
 */
public final class AssignTasks {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.append(answer(line.split(" "))).append('\n');
        }
        System.out.print(out);
    }

    private static String answer(String[] words) {
        TreeMap<String, String[]> subtopologies = new TreeMap<>();
        for (String subtopology : words[1].split(",")) {
            String[] parts = subtopology.split("=");
            subtopologies.put(parts[0], parts);
        }
        Map<String, AssignmentMemberSpec> members = new HashMap<>();
        for (int n = 2; n < words.length; n++) {
            String[] parts = words[n].split("=", -1);
            members.put(parts[0], new AssignmentMemberSpec(Optional.empty(), Optional.empty(), tasks(parts[2]),
                tasks(parts[3]), Map.of(), parts[1], Map.of(), Map.of(), Map.of()));
        }
        Map<String, MemberAssignment> assigned = new StickyTaskAssignor().assign(
            new GroupSpecImpl(members, Map.of("num.standby.replicas", words[0])), new Topology(subtopologies)).members();
        StringBuilder out = new StringBuilder();
        for (Map.Entry<String, MemberAssignment> member : new TreeMap<>(assigned).entrySet()) {
            out.append(member.getKey()).append('=').append(text(member.getValue().activeTasks()))
                .append('=').append(text(member.getValue().standbyTasks())).append(' ');
        }
        return out.toString();
    }

    private static Map<String, Set<Integer>> tasks(String text) {
        Map<String, Set<Integer>> tasks = new LinkedHashMap<>();
        for (String subtopology : text.isEmpty() ? new String[0] : text.split(",")) {
            String[] pair = subtopology.split(":");
            Set<Integer> partitions = new LinkedHashSet<>();
            for (String partition : pair[1].split("\\.")) {
                partitions.add(Integer.parseInt(partition));
            }
            tasks.put(pair[0], partitions);
        }
        return tasks;
    }

    private static String text(Map<String, Set<Integer>> tasks) {
        StringBuilder out = new StringBuilder();
        for (Map.Entry<String, Set<Integer>> one : new TreeMap<>(tasks).entrySet()) {
            out.append(out.length() == 0 ? "" : ",").append(one.getKey()).append(':');
            String separator = "";
            for (Integer partition : new TreeSet<>(one.getValue())) {
                out.append(separator).append(partition);
                separator = ".";
            }
        }
        return out.toString();
    }

    private record Topology(TreeMap<String, String[]> known) implements TopologyDescriber {
        @Override
        public List<String> subtopologies() {
            return List.copyOf(known.keySet());
        }

        @Override
        public int maxNumInputPartitions(String id) {
            return Integer.parseInt(known.get(id)[1]);
        }

        @Override
        public boolean isStateful(String id) {
            return known.get(id)[2].equals("true");
        }
    }
}
