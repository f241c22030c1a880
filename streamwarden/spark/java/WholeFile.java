package streamwarden;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/** A file of a checkpoint that is put when it is whole; one that is cancelled never is. */
abstract class WholeFile extends CheckpointFileManager.CancellableFSDataOutputStream {

    private final ByteArrayOutputStream content;
    private boolean over;

    WholeFile() {
        this(new ByteArrayOutputStream());
    }

    private WholeFile(ByteArrayOutputStream content) {
        super(content);
        this.content = content;
    }

    /** Create the file, or fail. */
    abstract void put(byte[] whole) throws IOException;

    @Override
    public synchronized void cancel() {
        over = true;
    }

    @Override
    public synchronized void close() throws IOException {
        if (!over) {
            over = true;
            put(content.toByteArray());
        }
    }
}
