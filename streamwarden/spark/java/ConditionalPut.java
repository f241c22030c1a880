package streamwarden;

import java.io.IOException;
import java.util.Arrays;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;

/** Creates an object that nobody else has created, by one PUT with {@code If-None-Match: *}. */
final class ConditionalPut {

    private ConditionalPut() {}

    /**
     * Create an object.
     *
     * @throws FileAlreadyExistsException if there is one with other content. One with the same is taken for ours: S3A
     *     repeats a request whose answer was lost, and is then refused for what it has written itself. It may be another
     *     driver's: two write the same bytes as {@code commits/N}. Then this one goes on and has lost nothing; its lease,
     *     or {@code offsets/N+1}, ends it.
     */
    static void put(FileSystem files, Path path, byte[] content) throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path).recursive().overwrite(false);
        // Must: a file system that does not know it would write over what is there.
        builder.must("fs.option.create.conditional.overwrite", true);
        FSDataOutputStream out = (FSDataOutputStream) builder.build();
        try {
            out.write(content);
            out.close();
        } catch (RemoteFileChangedException refused) {
            if (!Arrays.equals(content, read(files, path))) {
                FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
                exists.initCause(refused);
                throw exists;
            }
        }
    }

    private static byte[] read(FileSystem files, Path path) throws IOException {
        FSDataInputStream in = files.open(path);
        try {
            return in.readAllBytes();
        } finally {
            in.close();
        }
    }
}
