import io.debezium.transforms.ExtractNewRecordState;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;

/** What a sink of Kafka Connect gets: records of standard input, through Kafka's JSON converter and Debezium's transformation. */
public class ConnectSink {
    public static void main(String[] given) throws Exception {
        JsonConverter key = converter(true, true), value = converter(true, false), plain = converter(false, false);
        ExtractNewRecordState<SinkRecord> unwrapped = new ExtractNewRecordState<>();
        unwrapped.configure(Map.of("add.fields", "op,source.sequence"));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] parts = line.split(" ");
            SchemaAndValue k = key.toConnectData("t", bytes(parts[0])), v = value.toConnectData("t", bytes(parts[1]));
            SinkRecord record = unwrapped.apply(new SinkRecord("t", 0, k.schema(), k.value(), v.schema(), v.value(), 0));
            if (record != null) {
                System.out.println(json(plain, record.keySchema(), record.key()) + "\t" + json(plain, record.valueSchema(), record.value()));
            }
        }
    }

    static JsonConverter converter(boolean schemas, boolean isKey) {
        JsonConverter made = new JsonConverter();
        made.configure(Map.of("schemas.enable", schemas, "decimal.format", schemas ? "BASE64" : "NUMERIC"), isKey);
        return made;
    }

    static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }

    static String json(JsonConverter plain, org.apache.kafka.connect.data.Schema schema, Object value) {
        return value == null ? "null" : new String(plain.fromConnectData("t", schema, value), StandardCharsets.UTF_8);
    }
}
