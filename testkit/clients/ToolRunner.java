import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Map;
import java.util.Properties;

/**
 * Runs Apache Kafka's command-line tools one after the other in one JVM.
 *
 * Why: a JVM of its own costs each command about 1.5 s, and the tests run a hundred. Each command gets its own class
 * loader for the tools' classes (they keep state in static fields), and shares the client classes, which are compiled
 * after the first few commands. `Exit` is trapped: a tool that calls it ends its command, not the JVM.
 *
 * Standard input: per command the number of arguments, the main class and the arguments (length and UTF-8 bytes), then
 * what the command reads from its own standard input (length and bytes). Standard output: exit code, how many clients
 * were left open so far, standard output and standard error of the command (length and bytes each). All numbers are
 * int32, big-endian.
 */
public final class ToolRunner {
    private static final class ExitTrapped extends Error {
        ExitTrapped() {
            super(null, null, false, false);
        }

        /** Tools that catch Throwable print it; an exit is nothing to print. */
        @Override
        public String toString() {
            return "";
        }
    }

    private static volatile Integer exitStatus;

    public static void main(String[] args) throws Exception {
        Path toolsJar = Path.of(args[0]);
        DataInputStream commands = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(new FileOutputStream(FileDescriptor.out));
        trapExit();
        Properties properties = (Properties) System.getProperties().clone();
        while (true) {
            int count;
            try {
                count = commands.readInt();
            } catch (java.io.EOFException closed) {
                Runtime.getRuntime().halt(0);
                return;
            }
            String mainClass = new String(read(commands), StandardCharsets.UTF_8);
            String[] arguments = new String[count - 1];
            for (int i = 0; i < arguments.length; i++) {
                arguments[i] = new String(read(commands), StandardCharsets.UTF_8);
            }
            byte[] input = read(commands);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            int status = run(toolsJar, mainClass, arguments, input, out, err);
            System.setProperties((Properties) properties.clone());
            answers.writeInt(status);
            answers.writeInt(clientsLeftOpen());
            write(answers, out);
            write(answers, err);
            answers.flush();
        }
    }

    private static int run(Path toolsJar, String mainClass, String[] arguments, byte[] input,
                           ByteArrayOutputStream out, ByteArrayOutputStream err) throws Exception {
        InputStream oldIn = System.in;
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        ClassLoader oldLoader = Thread.currentThread().getContextClassLoader();
        exitStatus = null;
        System.setIn(new ByteArrayInputStream(input));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        URL[] urls = {toolsJar.toUri().toURL()};
        // Never closed: a tool's network threads may load classes after its main has returned.
        URLClassLoader loader = new URLClassLoader(urls, ToolRunner.class.getClassLoader());
        try {
            Thread.currentThread().setContextClassLoader(loader);
            loader.loadClass(mainClass).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return exitStatus == null ? 0 : exitStatus;
        } catch (InvocationTargetException thrown) {
            if (exitStatus != null) {
                return exitStatus;
            }
            StringWriter trace = new StringWriter();
            thrown.getCause().printStackTrace(new PrintWriter(trace, true));
            System.err.println(trace);
            return 1;
        } finally {
            runShutdownHooks();
            Thread.currentThread().setContextClassLoader(oldLoader);
            System.out.flush();
            System.err.flush();
            System.setIn(oldIn);
            System.setOut(oldOut);
            System.setErr(oldErr);
        }
    }

    /**
     * The verifiable clients close and report in their shutdown hook, so each command's hooks run at its end, as they
     * would in a JVM of its own. (Needs --add-opens=java.base/java.lang=ALL-UNNAMED.)
     */
    @SuppressWarnings("unchecked")
    private static void runShutdownHooks() throws Exception {
        Field registered = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
        registered.setAccessible(true);
        for (Thread hook : new ArrayList<>(((Map<Thread, Thread>) registered.get(null)).keySet())) {
            if (hook.getClass().getClassLoader() == null && hook.getClass() != Thread.class) {
                continue; // the JVM's own, such as the one of java.util.logging
            }
            Runtime.getRuntime().removeShutdownHook(hook);
            hook.start();
            hook.join(10_000);
        }
    }

    /** A tool that exits in its middle leaves its client to the end of the JVM; it goes on asking dead brokers. */
    private static int clientsLeftOpen() {
        return (int) Thread.getAllStackTraces().keySet().stream()
            .filter(thread -> thread.getName().startsWith("kafka-admin-client-thread")).count();
    }

    /** Kafka's own `Exit` has hooks for this; they live in the shared classes, so once is enough. */
    private static void trapExit() {
        org.apache.kafka.common.utils.Exit.setExitProcedure((status, message) -> trapped(status));
        org.apache.kafka.common.utils.Exit.setHaltProcedure((status, message) -> trapped(status));
        org.apache.kafka.common.utils.Exit.setShutdownHookAdder((name, hook) ->
            Runtime.getRuntime().addShutdownHook(new Thread(hook, name)));
    }

    private static void trapped(int status) {
        if (exitStatus == null) {
            exitStatus = status;
        }
        throw new ExitTrapped();
    }

    private static byte[] read(DataInputStream from) throws Exception {
        byte[] bytes = new byte[from.readInt()];
        from.readFully(bytes);
        return bytes;
    }

    private static void write(DataOutputStream to, ByteArrayOutputStream bytes) throws Exception {
        to.writeInt(bytes.size());
        bytes.writeTo(to);
    }
}
