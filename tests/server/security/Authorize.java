import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * What Apache Kafka's StandardAuthorizer says, a word a field, a line of standard input each:
 *
 * <pre>
 * new ALLOW_EVERYONE SUPER_USERS
 * add ID TYPE NAME PATTERN PRINCIPAL HOST OPERATION PERMISSION
 * remove ID
 * ask PRINCIPAL HOST OPERATION TYPE NAME
 * some PRINCIPAL HOST OPERATION TYPE
 * </pre>
 *
 * Kinds are numbers, as on the wire. A 1 for each question that is allowed, a 0 for each that is not.
 */
public final class Authorize {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        StandardAuthorizer authorizer = null;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "new" -> authorizer = fresh(words[1], words[2]);
                case "add" -> authorizer.addAcl(new Uuid(0, Long.parseLong(words[1])), rule(words));
                case "remove" -> authorizer.removeAcl(new Uuid(0, Long.parseLong(words[1])));
                default -> out.append(isAllowed(authorizer, words) ? '1' : '0');
            }
        }
        System.out.println(out);
    }

    private static StandardAuthorizer fresh(String everyone, String superUsers) {
        StandardAuthorizer made = new StandardAuthorizer();
        made.configure(Map.of("super.users", superUsers, "allow.everyone.if.no.acl.found", everyone, "node.id", "1"));
        made.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        made.completeInitialLoad();
        return made;
    }

    private static StandardAcl rule(String[] words) {
        return new StandardAcl(
            ResourceType.fromCode(Byte.parseByte(words[2])), words[3], PatternType.fromCode(Byte.parseByte(words[4])),
            words[5], words[6], AclOperation.fromCode(Byte.parseByte(words[7])),
            AclPermissionType.fromCode(Byte.parseByte(words[8])));
    }

    private static boolean isAllowed(StandardAuthorizer authorizer, String[] words) throws Exception {
        Asker asker = new Asker(words[1], words[2]);
        AclOperation operation = AclOperation.fromCode(Byte.parseByte(words[3]));
        ResourceType type = ResourceType.fromCode(Byte.parseByte(words[4]));
        if (words[0].equals("some")) {
            return authorizer.authorizeByResourceType(asker, operation, type) == AuthorizationResult.ALLOWED;
        }
        Action action = new Action(operation, new ResourcePattern(type, words[5], PatternType.LITERAL), 1, true, true);
        return authorizer.authorize(asker, List.of(action)).get(0) == AuthorizationResult.ALLOWED;
    }

    private static final class Asker implements AuthorizableRequestContext {
        private final KafkaPrincipal principal;
        private final InetAddress address;

        Asker(String principal, String host) throws Exception {
            String[] parts = principal.split(":", 2);
            this.principal = new KafkaPrincipal(parts[0], parts[1]);
            this.address = InetAddress.getByName(host);
        }

        @Override
        public String listenerName() {
            return "L";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        @Override
        public KafkaPrincipal principal() {
            return principal;
        }

        @Override
        public InetAddress clientAddress() {
            return address;
        }

        @Override
        public int requestType() {
            return 3;
        }

        @Override
        public int requestVersion() {
            return 12;
        }

        @Override
        public String clientId() {
            return "c";
        }

        @Override
        public int correlationId() {
            return 1;
        }
    }
}
