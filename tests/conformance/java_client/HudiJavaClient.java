import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.IndexedRecord;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hudi.HoodieVersion;
import org.apache.hudi.client.HoodieJavaWriteClient;
import org.apache.hudi.client.WriteStatus;
import org.apache.hudi.client.common.HoodieJavaEngineContext;
import org.apache.hudi.common.config.HoodieMetadataConfig;
import org.apache.hudi.common.config.TypedProperties;
import org.apache.hudi.common.data.HoodieListData;
import org.apache.hudi.common.engine.EngineType;
import org.apache.hudi.common.engine.HoodieReaderContext;
import org.apache.hudi.common.model.FileSlice;
import org.apache.hudi.common.model.HoodieKey;
import org.apache.hudi.common.model.HoodieRecord;
import org.apache.hudi.common.schema.HoodieSchema;
import org.apache.hudi.common.table.HoodieTableConfig;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.TableSchemaResolver;
import org.apache.hudi.common.table.read.HoodieFileGroupReader;
import org.apache.hudi.common.table.timeline.HoodieInstant;
import org.apache.hudi.common.table.timeline.HoodieTimeline;
import org.apache.hudi.common.table.view.HoodieTableFileSystemView;
import org.apache.hudi.common.util.HoodieRecordUtils;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.common.util.OrderingValues;
import org.apache.hudi.common.util.collection.ClosableIterator;
import org.apache.hudi.common.util.collection.Pair;
import org.apache.hudi.config.HoodieWriteConfig;
import org.apache.hudi.hadoop.fs.HadoopFSUtils;
import org.apache.hudi.keygen.KeyGenerator;
import org.apache.hudi.keygen.factory.HoodieAvroKeyGeneratorFactory;
import org.apache.hudi.metadata.FileSystemBackedTableMetadata;
import org.apache.hudi.metadata.HoodieBackedTableMetadata;
import org.apache.hudi.metadata.HoodieTableMetadata;
import org.apache.hudi.storage.StorageConfiguration;
import org.apache.hudi.table.action.HoodieWriteMetadata;
import org.apache.parquet.avro.AvroParquetReader;
import org.apache.parquet.avro.AvroParquetWriter;
import org.apache.parquet.avro.AvroSchemaConverter;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.ParquetReader;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.hadoop.util.HadoopOutputFile;

/**
 * Apache Hudi's Java client behind a line protocol: each line of standard input is a request, each line of standard output its
 * answer, both JSON. Rows are exchanged as Parquet files. It ends with its standard input.
 */
public final class HudiJavaClient {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Configuration HADOOP = new Configuration();
  private static final StorageConfiguration<Configuration> STORAGE;
  private static final HoodieJavaEngineContext ENGINE;

  static {
    HADOOP.setBoolean("parquet.avro.add-list-element-records", false);
    HADOOP.setBoolean("parquet.avro.write-old-list-structure", false);
    STORAGE = HadoopFSUtils.getStorageConf(HADOOP);
    ENGINE = new HoodieJavaEngineContext(STORAGE);
  }

  private HudiJavaClient() {}

  public static void main(String[] arguments) throws Exception {
    PrintStream replies = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err); // what libraries print is no answer
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      Map<String, Object> reply = new LinkedHashMap<>();
      try {
        reply.put("result", new Request(JSON.readValue(line, new TypeReference<Map<String, Object>>() {})).answer());
      } catch (Throwable error) {
        error.printStackTrace();
        reply.put("kind", error.getClass().getName());
        reply.put("message", withCauses(error));
      }
      replies.println(JSON.writeValueAsString(reply));
    }
    System.exit(0); // threads of Hudi's pools may still wait for work
  }

  private static String withCauses(Throwable error) {
    List<String> texts = new ArrayList<>();
    for (Throwable cause = error; cause != null && texts.size() < 10; cause = cause.getCause()) {
      texts.add(cause.toString());
    }
    return String.join("; caused by ", texts);
  }

  /** One request: `command`, `base_path`, `options` and what the command needs. */
  private static final class Request {
    private final Map<String, Object> fields;
    private final TypedProperties options = new TypedProperties();

    Request(Map<String, Object> fields) {
      this.fields = fields;
      ((Map<?, ?>) fields.getOrDefault("options", Map.of())).forEach((key, value) -> options.setProperty((String) key, (String) value));
    }

    private String text(String name) {
      return (String) fields.get(name);
    }

    private boolean isSet(String name) {
      return (Boolean) fields.get(name);
    }

    private HoodieTableMetaClient table() {
      return HoodieTableMetaClient.builder().setConf(STORAGE).setBasePath(text("base_path")).build();
    }

    Object answer() throws Exception {
      return switch (text("command")) {
        case "ping" -> Map.of("hudi", HoodieVersion.get(), "java", System.getProperty("java.version"));
        case "create" -> create();
        case "read" -> read();
        case "write" -> write();
        case "service" -> service();
        case "locations" -> locations();
        case "column_stats" -> columnStats();
        default -> throw new IllegalArgumentException("unknown command " + text("command"));
      };
    }

    private Object create() throws Exception {
      Properties properties = new Properties();
      properties.putAll(options);
      HoodieTableMetaClient.newTableBuilder()
          .fromProperties(properties)
          .setTableVersion(Integer.parseInt(options.getString("hoodie.table.version")))
          .initTable(STORAGE, text("base_path"));
      return null;
    }

    // --- reading ---------------------------------------------------------------------------------------------------------

    /** Whether the table is listed by its metadata table: `metadata`, or if it has one. */
    private HoodieTableMetadata listing(HoodieTableMetaClient table, boolean metadata) {
      if (!metadata) {
        return new FileSystemBackedTableMetadata(ENGINE, table.getTableConfig(), table.getStorage(), text("base_path"));
      }
      HoodieMetadataConfig config = HoodieMetadataConfig.newBuilder().enable(true).build();
      HoodieBackedTableMetadata found = new HoodieBackedTableMetadata(ENGINE, table.getStorage(), config, text("base_path"));
      if (!found.enabled()) {
        throw new IllegalStateException("the table has no metadata table");
      }
      return found;
    }

    /** Writes the rows of a snapshot query, meta fields included, into `target`; returns how many. */
    private Object read() throws Exception {
      HoodieTableMetaClient table = table();
      HoodieSchema schema = new TableSchemaResolver(table).getTableSchema(true);
      long rows = 0;
      try (HoodieTableMetadata listing = listing(table, isSet("metadata"));
          ParquetWriter<IndexedRecord> target = writer(schema.toAvroSchema())) {
        HoodieTimeline timeline = table.getCommitsAndCompactionTimeline().filterCompletedAndCompactionInstants();
        Option<String> latest = timeline.lastInstant().map(HoodieInstant::requestedTime);
        HoodieTableFileSystemView view = new HoodieTableFileSystemView(listing, table, timeline);
        for (String partition : listing.getAllPartitionPaths()) {
          List<FileSlice> slices = latest.isPresent()
              ? view.getLatestMergedFileSlicesBeforeOrOn(partition, latest.get()).collect(Collectors.toList())
              : Collections.emptyList();
          for (FileSlice slice : slices) {
            rows += read(table, schema, partition, slice, latest.get(), target);
          }
        }
        view.close();
      }
      return rows;
    }

    private long read(HoodieTableMetaClient table, HoodieSchema schema, String partition, FileSlice slice, String latest,
        ParquetWriter<IndexedRecord> target) throws Exception {
      TypedProperties properties = new TypedProperties();
      properties.putAll(table.getTableConfig().getProps());
      properties.putAll(options);
      HoodieReaderContext<IndexedRecord> context = ENGINE.getReaderContextFactory(table).getContext();
      long rows = 0;
      try (HoodieFileGroupReader<IndexedRecord> reader = HoodieFileGroupReader.<IndexedRecord>builder()
              .withReaderContext(context)
              .withHoodieTableMetaClient(table)
              .withLatestCommitTime(latest)
              .withBaseFileOption(slice.getBaseFile())
              .withLogFiles(slice.getLogFiles())
              .withPartitionPath(partition)
              .withDataSchema(schema)
              .withRequestedSchema(schema)
              .withInternalSchemaOpt(Option.empty())
              .withProps(properties)
              .build();
          ClosableIterator<IndexedRecord> found = reader.getClosableIterator()) {
        while (found.hasNext()) {
          target.write(found.next());
          rows++;
        }
      }
      return rows;
    }

    private ParquetWriter<IndexedRecord> writer(Schema schema) throws Exception {
      return AvroParquetWriter.<IndexedRecord>builder(HadoopOutputFile.fromPath(new Path(text("target")), HADOOP))
          .withSchema(schema)
          .withConf(HADOOP)
          .withDataModel(GenericData.get())
          .build();
    }

    /** By record key, the partition, file id and instant that the record index of the metadata table has. */
    private Object locations() throws Exception {
      Map<String, List<String>> found = new TreeMap<>();
      try (HoodieTableMetadata listing = listing(table(), true)) {
        List<String> keys = ((List<?>) fields.get("keys")).stream().map(Object::toString).collect(Collectors.toList());
        listing.readRecordIndexLocationsWithKeys(HoodieListData.eager(keys)).collectAsList().forEach(pair -> found.put(
            pair.getLeft(),
            List.of(pair.getRight().getPartitionPath(), pair.getRight().getFileId(), pair.getRight().getInstantTime())));
      }
      return found;
    }

    /** Counts of values, nulls and the bounds, as text, of a column in each of the files `[partition, name]`. */
    private Object columnStats() throws Exception {
      Map<String, List<String>> found = new TreeMap<>();
      try (HoodieTableMetadata listing = listing(table(), true)) {
        List<Pair<String, String>> files = ((List<?>) fields.get("files")).stream()
            .map(file -> Pair.of((String) ((List<?>) file).get(0), (String) ((List<?>) file).get(1)))
            .collect(Collectors.toList());
        listing.getColumnStats(files, text("column")).forEach((file, stats) -> found.put(
            file.getRight(),
            Arrays.asList(
                String.valueOf(stats.getValueCount()), String.valueOf(stats.getNullCount()),
                String.valueOf(stats.getMinValue()), String.valueOf(stats.getMaxValue()))));
      }
      return found;
    }

    // --- writing ---------------------------------------------------------------------------------------------------------

    private HoodieJavaWriteClient<Object> client(String schema) {
      HoodieWriteConfig.Builder builder =
          HoodieWriteConfig.newBuilder().withEngineType(EngineType.JAVA).withPath(text("base_path")).withProps(options);
      return new HoodieJavaWriteClient<>(ENGINE, (schema == null ? builder : builder.withSchema(schema)).build());
    }

    /** The schema of the table, or that of `source` where it has none, without meta fields. */
    private Schema schema(HoodieTableMetaClient table) throws Exception {
      Option<HoodieSchema> known = new TableSchemaResolver(table).getTableSchemaIfPresent(false);
      if (known.isPresent() || text("source") == null) {
        return known.get().toAvroSchema();
      }
      try (ParquetFileReader file = ParquetFileReader.open(HadoopInputFile.fromPath(new Path(text("source")), HADOOP))) {
        return new AvroSchemaConverter(HADOOP).convert(file.getFileMetaData().getSchema());
      }
    }

    /** Writes the rows of `source` by `operation`; returns the instant. */
    private Object write() throws Exception {
      HoodieTableMetaClient table = table();
      Schema schema = schema(table);
      KeyGenerator keys = HoodieAvroKeyGeneratorFactory.createKeyGenerator(options);
      List<GenericRecord> rows = rows(schema);
      try (HoodieJavaWriteClient<Object> client = client(schema.toString())) {
        String instant = client.startCommit();
        List<WriteStatus> written;
        if (text("operation").equals("delete")) {
          written = client.delete(rows.stream().map(keys::getKey).collect(Collectors.toList()), instant);
        } else {
          List<HoodieRecord<Object>> records = records(table.getTableConfig(), rows, keys);
          written = switch (text("operation")) {
            case "upsert" -> client.upsert(records, instant);
            case "insert" -> client.insert(records, instant);
            case "bulk_insert" -> client.bulkInsert(records, instant);
            default -> throw new IllegalArgumentException("unknown operation " + text("operation"));
          };
        }
        refuseErrors(written);
        if (!client.commit(instant, written)) {
          throw new IllegalStateException("commit of " + instant + " returned false");
        }
        return instant;
      }
    }

    private List<GenericRecord> rows(Schema schema) throws Exception {
      Configuration projected = new Configuration(HADOOP);
      projected.set("parquet.avro.read.schema", schema.toString());
      List<GenericRecord> rows = new ArrayList<>();
      try (ParquetReader<GenericRecord> reader = AvroParquetReader
              .<GenericRecord>builder(HadoopInputFile.fromPath(new Path(text("source")), projected))
              .withDataModel(GenericData.get())
              .withConf(projected)
              .build()) {
        for (GenericRecord row = reader.read(); row != null; row = reader.read()) {
          rows.add(row);
        }
      }
      return rows;
    }

    @SuppressWarnings("unchecked")
    private static List<HoodieRecord<Object>> records(HoodieTableConfig table, List<GenericRecord> rows, KeyGenerator keys) {
      List<String> ordering = HoodieRecordUtils.getOrderingFieldNames(table.getRecordMergeMode(), table);
      return rows.stream()
          .map(row -> (HoodieRecord<Object>) HoodieRecordUtils.createHoodieRecord(
              row,
              OrderingValues.create(ordering, field -> (Comparable<?>) row.get(field)),
              keys.getKey(row),
              table.getPayloadClass(),
              false,
              null))
          .collect(Collectors.toList());
    }

    private static void refuseErrors(List<WriteStatus> written) {
      written.stream().filter(WriteStatus::hasErrors).findFirst().ifPresent(status -> {
        throw new IllegalStateException("rows were not written: " + status.getErrors(), status.getGlobalError());
      });
    }

    /** Runs the table service `service`; returns its instant, or null if there was nothing to do. */
    private Object service() throws Exception {
      try (HoodieJavaWriteClient<Object> client = client(schema(table()).toString())) {
        String instant = text("instant");
        switch (text("service")) {
          case "schedule_compaction":
            return client.scheduleCompaction(Option.empty()).orElse(null);
          case "compact":
            HoodieWriteMetadata<List<WriteStatus>> compacted = client.compact(instant);
            client.commitCompaction(instant, compacted, Option.empty());
            return instant;
          case "schedule_clustering":
            return client.scheduleClustering(Option.empty()).orElse(null);
          case "cluster":
            client.cluster(instant, true);
            return instant;
          case "clean":
            var cleaned = client.clean();
            return cleaned == null ? null : cleaned.getStartCleanTime();
          case "rollback":
            return client.rollback(instant) ? instant : null;
          default:
            throw new IllegalArgumentException("unknown service " + text("service"));
        }
      }
    }
  }
}
