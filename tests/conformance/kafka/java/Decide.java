import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.security.scram.internals.ScramMessages.*;

/** Reads lines of the corpus without results, and writes what Kafka's own classes make of them. */
public class Decide {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode record = (ObjectNode) JSON.readTree(line);
            out.println(JSON.writeValueAsString(record.has("message") ? parse(record) : assign(record)));
        }
    }

    // ---- assignors ----

    /** Names of members or topics, and others in the same order. */
    private static Map<String, String> rename(Collection<String> names, Random random) {
        Map<String, String> renamed = new HashMap<>();
        for (String name : new TreeSet<>(names))
            renamed.put(name, random == null ? name : String.format("n%05d-%d", renamed.size(), random.nextInt(1000)));
        return renamed;
    }

    private static Map<String, String> swap(Map<String, String> names) {
        return names.entrySet().stream().collect(Collectors.toMap(Map.Entry::getValue, Map.Entry::getKey));
    }

    private static ObjectNode assign(ObjectNode line) {
        Random random = new Random(5);
        try {
            SortedMap<String, SortedSet<String>> base = assigned(line, null, null);
            boolean shuffled = true, renamed = true;
            for (int i = 0; i < 4; i++) {
                shuffled &= assigned(line, random, null).equals(base);
                renamed &= assigned(line, null, random).equals(base);
            }
            ObjectNode assignment = line.putObject("assignment");
            base.forEach((member, partitions) -> {
                ArrayNode list = assignment.putArray(member);
                for (String partition : partitions) {
                    String[] parts = partition.split(" ");
                    list.addArray().add(parts[0]).add(Integer.parseInt(parts[1]));
                }
            });
            line.put("deterministic", shuffled && renamed);
            line.put("same_under_shuffle", shuffled).put("same_under_renaming", renamed);
        } catch (RuntimeException error) {
            line.put("error", error.toString());
        }
        return line;
    }

    private static SortedMap<String, SortedSet<String>> assigned(JsonNode line, Random shuffle, Random rename) {
        List<JsonNode> members = new ArrayList<>();
        line.get("members").forEach(members::add);
        if (shuffle != null)
            Collections.shuffle(members, shuffle);
        Set<String> topicNames = new HashSet<>();
        line.get("topics").fieldNames().forEachRemaining(topicNames::add);
        for (JsonNode member : members) {
            member.get("topics").forEach(topic -> topicNames.add(topic.asText()));
            member.get("owned").forEach(partition -> topicNames.add(partition.get(0).asText()));
        }
        Map<String, String> topics = rename(topicNames, rename);
        Map<String, String> ids =
            rename(members.stream().map(m -> m.get("member_id").asText()).collect(Collectors.toList()), rename);
        Map<String, Subscription> subscriptions = shuffle == null ? new HashMap<>() : new LinkedHashMap<>();
        boolean sticky = line.get("assignor").asText().equals("sticky");
        for (JsonNode member : members)
            subscriptions.put(ids.get(member.get("member_id").asText()), subscription(member, topics, sticky));
        ConsumerPartitionAssignor assignor = sticky ? new StickyAssignor() : new CooperativeStickyAssignor();
        Map<String, String> topicsBack = swap(topics), idsBack = swap(ids);
        SortedMap<String, SortedSet<String>> result = new TreeMap<>();
        assignor.assign(cluster(line, topics), new GroupSubscription(subscriptions)).groupAssignment()
            .forEach((member, assignment) -> result.put(idsBack.get(member), assignment.partitions().stream()
                .map(p -> topicsBack.get(p.topic()) + " " + p.partition()).collect(Collectors.toCollection(TreeSet::new))));
        return result;
    }

    @SuppressWarnings("deprecation")
    private static Subscription subscription(JsonNode member, Map<String, String> names, boolean sticky) {
        List<String> topics = new ArrayList<>();
        member.get("topics").forEach(topic -> topics.add(names.get(topic.asText())));
        List<TopicPartition> owned = new ArrayList<>();
        member.get("owned").forEach(p -> owned.add(new TopicPartition(names.get(p.get(0).asText()), p.get(1).asInt())));
        int generation = member.get("generation").asInt();
        ConsumerGroupMetadata metadata = new ConsumerGroupMetadata("g", generation, "", Optional.empty());
        ByteBuffer userData = null;
        if (!sticky) {
            CooperativeStickyAssignor assignor = new CooperativeStickyAssignor();
            assignor.onAssignment(new Assignment(owned), metadata);
            userData = assignor.subscriptionUserData(Set.copyOf(topics));
        } else if (!owned.isEmpty() || generation >= 0) {
            StickyAssignor assignor = new StickyAssignor();
            assignor.onAssignment(new Assignment(owned), metadata);
            userData = assignor.subscriptionUserData(Set.copyOf(topics));
        }
        Optional<String> rack = Optional.ofNullable(member.get("rack").textValue());
        Subscription made = new Subscription(topics, userData, sticky ? List.of() : owned, generation, rack);
        made.setGroupInstanceId(Optional.ofNullable(member.get("instance_id").textValue()));
        return made;
    }

    private static Cluster cluster(JsonNode line, Map<String, String> names) {
        Map<String, Node> nodes = new LinkedHashMap<>();
        nodes.put(null, new Node(0, "h", 1));
        List<PartitionInfo> partitions = new ArrayList<>();
        line.get("topics").fields().forEachRemaining(topic -> {
            JsonNode racks = line.get("replica_racks").path(topic.getKey());
            for (int number = 0; number < topic.getValue().asInt(); number++) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : racks.path(number))
                    replicas.add(nodes.computeIfAbsent(rack.textValue(), r -> new Node(nodes.size(), "h", 1, r)));
                if (racks.isMissingNode())
                    replicas.add(nodes.get(null));
                Node[] all = replicas.toArray(new Node[0]);
                Node leader = all.length == 0 ? null : all[0];
                partitions.add(new PartitionInfo(names.get(topic.getKey()), number, leader, all, all));
            }
        });
        return new Cluster("c", new LinkedHashSet<>(nodes.values()), partitions, Set.of(), Set.of());
    }

    // ---- SCRAM ----

    private static ObjectNode parse(ObjectNode line) {
        byte[] text = line.get("text").asText().getBytes(StandardCharsets.UTF_8);
        ObjectNode parsed = JSON.createObjectNode();
        try {
            switch (line.get("message").asText()) {
                case "client_first": {
                    ClientFirstMessage m = new ClientFirstMessage(text);
                    parsed.put("sasl_name", m.saslName()).put("nonce", m.nonce());
                    parsed.put("authzid", m.authorizationId()).put("gs2", m.gs2Header());
                    break;
                }
                case "server_first": {
                    ServerFirstMessage m = new ServerFirstMessage(text);
                    parsed.put("nonce", m.nonce()).put("salt", hex(m.salt())).put("iterations", m.iterations());
                    break;
                }
                case "client_final": {
                    ClientFinalMessage m = new ClientFinalMessage(text);
                    parsed.put("nonce", m.nonce()).put("channel_binding", hex(m.channelBinding()));
                    parsed.put("proof", hex(m.proof()));
                    break;
                }
                default: {
                    ServerFinalMessage m = new ServerFinalMessage(text);
                    parsed.put("error", m.error()).put("signature", hex(m.serverSignature()));
                }
            }
            line.put("accepted", true).set("parsed", parsed);
        } catch (javax.security.sasl.SaslException error) {
            line.put("accepted", false).put("exception", error.getClass().getName());
        }
        return line;
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }
}
