package streamwarden;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3, where of two that commit the same version one fails.
 *
 * <p>Delta's own store for S3 looks whether the version is there and then puts it without a condition: whoever is paused
 * between the two writes over what has come meanwhile.
 */
public final class ConditionalPutLogStore extends S3SingleDriverLogStore {

    /** Called by Delta. */
    public ConditionalPutLogStore(Configuration configuration) {
        super(configuration);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        try {
            ConditionalPut.put(path.getFileSystem(configuration), path, Commit.content(actions));
        } catch (org.apache.hadoop.fs.FileAlreadyExistsException exists) {
            // The name that Delta knows: it looks who has won, and whether this commit may follow.
            FileAlreadyExistsException told = new FileAlreadyExistsException(path.toString());
            told.initCause(exists);
            throw told;
        }
    }
}
