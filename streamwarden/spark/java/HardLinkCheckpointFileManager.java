package streamwarden;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * A checkpoint on disk, where of two that write the same entry of a log (offsets, commits, a source's files) one fails.
 *
 * <p>The class below it looks whether the entry is there and then renames, which writes over what has come meanwhile.
 * What may be written over, the state's files above all, is left to it; and all where there are no hard links.
 */
public final class HardLinkCheckpointFileManager extends FileSystemBasedCheckpointFileManager {

    /** Called by Spark. */
    public HardLinkCheckpointFileManager(Path path, Configuration configuration) {
        super(path, configuration);
    }

    @Override
    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
        return overwriteIfPossible ? renamed(path, true) : new Entry(this, path);
    }

    private CheckpointFileManager.CancellableFSDataOutputStream renamed(Path path, boolean overwriteIfPossible) {
        return super.createAtomic(path, overwriteIfPossible);
    }

    private static final class Entry extends WholeFile {

        private final HardLinkCheckpointFileManager manager;
        private final Path path;

        Entry(HardLinkCheckpointFileManager manager, Path path) {
            this.manager = manager;
            this.path = path;
        }

        @Override
        void put(byte[] whole) throws IOException {
            try {
                if (HardLink.put(manager.fs(), path, whole)) {
                    return;
                }
            } catch (FileAlreadyExistsException refused) {
                // The name that Spark knows.
                org.apache.hadoop.fs.FileAlreadyExistsException exists =
                        new org.apache.hadoop.fs.FileAlreadyExistsException(path.toString());
                exists.initCause(refused);
                throw exists;
            }
            CheckpointFileManager.CancellableFSDataOutputStream out = manager.renamed(path, false);
            try {
                out.write(whole);
                out.close();
            } catch (IOException failed) {
                out.cancel();
                throw failed;
            }
        }
    }
}
