import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Properties;

import org.apache.avro.Schema;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.avro.specific.SpecificDatumReader;
import org.apache.avro.specific.SpecificDatumWriter;
import org.apache.avro.specific.SpecificRecordBase;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;

import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
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
 * The micro workload on Kafka Streams, exactly_once_v2: count events by key, remember their ids, pass each one
 * on. Runs until the process is ended. Events, keys and counts have typed serdes; ids have no expiry.
 */
public class KafkaStreamsPeer {
    /** An event as JSON. */
    record JsonMade(String k, long i) {}

    /** The event passed on as JSON, with how many its key has had. */
    record JsonCounted(String k, long i, long n) {}

    /** Makes the event that is passed on. */
    interface Counting<M, C> {
        C counted(M event, long count);
    }

    static final class Count<M, C> implements Processor<String, M, String, C> {
        private static final byte[] SEEN = {1};
        private final Counting<M, C> counting;
        private ProcessorContext<String, C> context;
        private KeyValueStore<String, Long> counts;
        private KeyValueStore<byte[], byte[]> inbox;

        Count(Counting<M, C> counting) {
            this.counting = counting;
        }

        public void init(ProcessorContext<String, C> given) {
            context = given;
            counts = given.getStateStore("counts");
            inbox = given.getStateStore("inbox");
        }

        public void process(Record<String, M> record) {
            byte[] id = record.headers().lastHeader("ce_id").value();
            if (inbox.putIfAbsent(id, SEEN) != null) {
                return;
            }
            Long before = counts.get(record.key());
            long count = before == null ? 1 : before + 1;
            counts.put(record.key(), count);
            context.forward(record.withValue(counting.counted(record.value(), count)));
        }
    }

    public static void main(String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        if (System.getenv("BENCH_FORMAT").equals("json")) {
            var counted = json(JsonCounted.class);
            build(builder, json(JsonMade.class), counted, (event, n) -> new JsonCounted(event.k(), event.i(), n));
        } else {
            EventMade.schema = new Schema.Parser().parse(arguments[0]);
            EventCounted.schema = new Schema.Parser().parse(arguments[1]);
            Serde<EventMade> made = avro(EventMade.schema);
            Serde<EventCounted> counted = avro(EventCounted.schema);
            build(builder, made, counted, EventCounted::new);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings());
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static <M, C> void build(StreamsBuilder builder, Serde<M> made, Serde<C> counted, Counting<M, C> counting) {
        Serde<String> keys = Serdes.String();
        Serde<byte[]> bytes = Serdes.ByteArray();
        var counts = Stores.persistentKeyValueStore("counts");
        var inbox = Stores.persistentKeyValueStore("inbox");
        builder.addStateStore(Stores.keyValueStoreBuilder(counts, keys, Serdes.Long()).withCachingEnabled());
        builder.addStateStore(Stores.keyValueStoreBuilder(inbox, bytes, bytes).withCachingEnabled());
        builder.stream(System.getenv("BENCH_SOURCE"), Consumed.with(keys, made))
            .process(() -> new Count<>(counting), "counts", "inbox")
            .to(System.getenv("BENCH_OUTPUT"), Produced.with(keys, counted));
    }

    private static <T> Serde<T> json(Class<T> type) {
        ObjectMapper mapper = new ObjectMapper();
        ObjectReader reader = mapper.readerFor(type);
        ObjectWriter writer = mapper.writerFor(type);
        return serde(writer::writeValueAsBytes, reader::readValue);
    }

    /** Of threads of their own: encoder, decoder and buffer are used again for each event. */
    private static <T extends SpecificRecordBase> Serde<T> avro(Schema schema) {
        ThreadLocal<AvroCodec<T>> codecs = ThreadLocal.withInitial(() -> new AvroCodec<>(schema));
        return serde(value -> codecs.get().encode(value), data -> codecs.get().decode(data));
    }

    static final class AvroCodec<T extends SpecificRecordBase> {
        private final SpecificDatumReader<T> reader;
        private final SpecificDatumWriter<T> writer;
        private final ByteArrayOutputStream out = new ByteArrayOutputStream();
        private BinaryDecoder decoder;
        private BinaryEncoder encoder;

        AvroCodec(Schema schema) {
            reader = new SpecificDatumReader<>(schema);
            writer = new SpecificDatumWriter<>(schema);
        }

        T decode(byte[] data) throws IOException {
            decoder = DecoderFactory.get().binaryDecoder(data, decoder);
            return reader.read(null, decoder);
        }

        byte[] encode(T value) throws IOException {
            out.reset();
            encoder = EncoderFactory.get().binaryEncoder(out, encoder);
            writer.write(value, encoder);
            encoder.flush();
            return out.toByteArray();
        }
    }

    interface Encode<T> {
        byte[] of(T value) throws IOException;
    }

    interface Decode<T> {
        T of(byte[] data) throws IOException;
    }

    private static <T> Serde<T> serde(Encode<T> encode, Decode<T> decode) {
        Serializer<T> serializer = (topic, value) -> {
            try {
                return encode.of(value);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        };
        Deserializer<T> deserializer = (topic, data) -> {
            try {
                return decode.of(data);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        };
        return Serdes.serdeFrom(serializer, deserializer);
    }

    private static Properties settings() {
        Properties settings = new Properties();
        settings.put("application.id", System.getenv("BENCH_NAME"));
        settings.put("bootstrap.servers", System.getenv("BENCH_BOOTSTRAP"));
        settings.put("state.dir", System.getenv("BENCH_VAR"));
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("replication.factor", "1");
        settings.put("consumer.auto.offset.reset", "earliest");
        for (String setting : System.getenv("BENCH_STREAMS").split(",")) {
            String[] parts = setting.split("=");
            settings.put(parts[0], parts[1]);
        }
        return settings;
    }
}

/** An event as Avro: the class that Avro's generator would make of the schema, without its builder. */
class EventMade extends SpecificRecordBase {
    static Schema schema;
    CharSequence k;
    long i;

    public Schema getSchema() {
        return schema;
    }

    public Object get(int field) {
        return field == 0 ? k : (Object) i;
    }

    public void put(int field, Object value) {
        if (field == 0) {
            k = (CharSequence) value;
        } else {
            i = (Long) value;
        }
    }
}

/** The event passed on as Avro. */
class EventCounted extends SpecificRecordBase {
    static Schema schema;
    CharSequence k;
    long i;
    long n;

    EventCounted(EventMade event, long count) {
        k = event.k;
        i = event.i;
        n = count;
    }

    public Schema getSchema() {
        return schema;
    }

    public Object get(int field) {
        return switch (field) {
            case 0 -> k;
            case 1 -> i;
            default -> n;
        };
    }

    public void put(int field, Object value) {
        throw new UnsupportedOperationException("it is only written");
    }
}
