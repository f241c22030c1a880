package streamwarden;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * A checkpoint on S3, where of two that write the same entry of a log (offsets, commits, a source's files) one fails.
 *
 * <p>The class below it looks whether the entry is there and then puts it without a condition. What may be written over,
 * the state's files above all, is left to it.
 */
public final class ConditionalPutCheckpointFileManager extends AbortableStreamBasedCheckpointFileManager {

    private final FileSystem files;

    /** Called by Spark. */
    public ConditionalPutCheckpointFileManager(Path path, Configuration configuration) throws IOException {
        super(path, configuration);
        files = path.getFileSystem(configuration);
    }

    @Override
    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
        if (overwriteIfPossible) {
            return super.createAtomic(path, overwriteIfPossible);
        }
        return new Entry(files, path);
    }

    private static final class Entry extends WholeFile {

        private final FileSystem files;
        private final Path path;

        Entry(FileSystem files, Path path) {
            this.files = files;
            this.path = path;
        }

        @Override
        void put(byte[] whole) throws IOException {
            ConditionalPut.put(files, path, whole);
        }
    }
}
