package streamwarden;

import io.delta.storage.LocalLogStore;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on disk, where of two processes that commit the same version one fails.
 *
 * <p>Delta's own store looks whether the version is there and then renames, which writes over what has come meanwhile; its
 * lock holds within a JVM. Where there are no hard links it does its work as before.
 */
public final class HardLinkLogStore extends LocalLogStore {

    /** Called by Delta. */
    public HardLinkLogStore(Configuration configuration) {
        super(configuration);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        List<String> kept = new ArrayList<String>();
        while (actions.hasNext()) {
            kept.add((String) actions.next());
        }
        // The exception for a version that is there is the one that Delta knows.
        if (!HardLink.put(path.getFileSystem(configuration), path, Commit.content(kept.iterator()))) {
            super.write(path, kept.iterator(), overwrite, configuration);
        }
    }
}
