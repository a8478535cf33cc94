import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Properties;

import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The micro workload on Kafka Streams, exactly_once_v2, one thread: count events by key, remember their ids,
 * pass each one on. Runs until the process is ended. Counts are kept as longs, ids without an expiry.
 */
public class KafkaStreamsPeer {
    /** Decodes an event, and encodes it with its key's count. */
    interface Codec {
        byte[] counted(byte[] event, long count) throws IOException;
    }

    static final class Json implements Codec {
        private final ObjectMapper mapper = new ObjectMapper();

        public byte[] counted(byte[] event, long count) throws IOException {
            ObjectNode node = (ObjectNode) mapper.readTree(event);
            return mapper.writeValueAsBytes(node.put("n", count));
        }
    }

    static final class Avro implements Codec {
        private final Schema counted;
        private final GenericDatumReader<GenericRecord> reader;
        private final GenericDatumWriter<GenericRecord> writer;
        private final ByteArrayOutputStream out = new ByteArrayOutputStream();
        private BinaryDecoder decoder;
        private BinaryEncoder encoder;
        private GenericRecord made;

        Avro(String madeSchema, String countedSchema) {
            counted = new Schema.Parser().parse(countedSchema);
            reader = new GenericDatumReader<>(new Schema.Parser().parse(madeSchema));
            writer = new GenericDatumWriter<>(counted);
        }

        public byte[] counted(byte[] event, long count) throws IOException {
            decoder = DecoderFactory.get().binaryDecoder(event, decoder);
            made = reader.read(made, decoder);
            GenericRecord record = new GenericData.Record(counted);
            record.put("k", made.get("k"));
            record.put("i", made.get("i"));
            record.put("n", count);
            out.reset();
            encoder = EncoderFactory.get().binaryEncoder(out, encoder);
            writer.write(record, encoder);
            encoder.flush();
            return out.toByteArray();
        }
    }

    static final class Count implements Processor<byte[], byte[], byte[], byte[]> {
        private static final byte[] SEEN = {1};
        private final Codec codec;
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<byte[], byte[]> counts;
        private KeyValueStore<byte[], byte[]> inbox;

        Count(Codec codec) {
            this.codec = codec;
        }

        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            counts = given.getStateStore("counts");
            inbox = given.getStateStore("inbox");
        }

        public void process(Record<byte[], byte[]> record) {
            byte[] id = record.headers().lastHeader("ce_id").value();
            if (inbox.putIfAbsent(id, SEEN) != null) {
                return;
            }
            byte[] before = counts.get(record.key());
            long count = before == null ? 1 : ByteBuffer.wrap(before).getLong() + 1;
            counts.put(record.key(), ByteBuffer.allocate(Long.BYTES).putLong(count).array());
            try {
                context.forward(record.withValue(codec.counted(record.value(), count)));
            } catch (IOException error) {
                throw new IllegalStateException("undecodable event", error);
            }
        }
    }

    public static void main(String[] arguments) {
        String made = arguments[0];
        String counted = arguments[1];
        boolean json = System.getenv("BENCH_FORMAT").equals("json");
        Serde<byte[]> bytes = Serdes.ByteArray();
        StreamsBuilder builder = new StreamsBuilder();
        for (String store : new String[] {"counts", "inbox"}) {
            var supplier = Stores.persistentKeyValueStore(store);
            builder.addStateStore(Stores.keyValueStoreBuilder(supplier, bytes, bytes).withCachingEnabled());
        }
        builder.stream(System.getenv("BENCH_SOURCE"), Consumed.with(bytes, bytes))
            .process(() -> new Count(json ? new Json() : new Avro(made, counted)), "counts", "inbox")
            .to(System.getenv("BENCH_OUTPUT"), Produced.with(bytes, bytes));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings());
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static Properties settings() {
        Properties settings = new Properties();
        settings.put("application.id", System.getenv("BENCH_NAME"));
        settings.put("bootstrap.servers", System.getenv("BENCH_BOOTSTRAP"));
        settings.put("state.dir", System.getenv("BENCH_VAR"));
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("num.stream.threads", "1");
        settings.put("replication.factor", "1");
        settings.put("consumer.auto.offset.reset", "earliest");
        for (String setting : System.getenv("BENCH_STREAMS").split(",")) {
            String[] parts = setting.split("=");
            settings.put(parts[0], parts[1]);
        }
        return settings;
    }
}
