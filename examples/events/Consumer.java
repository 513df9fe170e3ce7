// Reacts to changed rows by the headers alone: java --source 17 -cp kafka-clients.jar:... Consumer.java BROKERS [TOPIC] [GROUP] [COUNT].
// After COUNT events it ends. The headers need no schema, so every format of the value will do.
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Consumer {
  public static void main(String[] arguments) {
    String topic = arguments.length > 1 ? arguments[1] : "tideline.timeline";
    String group = arguments.length > 2 ? arguments[2] : "reports";
    long left = arguments.length > 3 ? Long.parseLong(arguments[3]) : Long.MAX_VALUE;
    Map<String, Object> options =
        Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", group,
            "enable.auto.commit", "false",
            "isolation.level", "read_committed",
            "auto.offset.reset", "earliest");
    Map<String, Long> processed = new HashMap<>();
    try (var consumer = new KafkaConsumer<>(options, new StringDeserializer(), new ByteArrayDeserializer())) {
      consumer.subscribe(List.of(topic));
      while (left > 0) {
        for (var record : consumer.poll(Duration.ofSeconds(1))) {
          long sequence = Long.parseLong(header(record, "ce_sequence"));
          boolean isDuplicate = sequence <= processed.getOrDefault(record.key(), -1L);
          if (isDuplicate || left == 0 || !header(record, "ce_datachange").equals("true")) continue;
          System.out.println(record.key() + " " + sequence + " " + header(record, "ce_subject"));
          processed.put(record.key(), sequence);
          left--;
        }
        consumer.commitSync(); // after the events are processed
      }
    }
  }

  static String header(ConsumerRecord<String, byte[]> record, String name) {
    return new String(record.headers().lastHeader(name).value(), StandardCharsets.UTF_8);
  }
}
