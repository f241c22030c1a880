package streamwarden;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.util.UUID;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;

/** Creates a file that nobody else has created, by a hard link from another name. A rename would write over it. */
final class HardLink {

    private HardLink() {}

    /**
     * Create a file.
     *
     * @return false if that can't be done so, and was not: on a file system without hard links, on another than the
     *     local one, and where the folder is missing
     * @throws FileAlreadyExistsException if there is one, whatever its content
     */
    static boolean put(FileSystem files, Path path, byte[] content) throws IOException {
        if (!(files instanceof LocalFileSystem)) {
            return false;
        }
        java.nio.file.Path file = ((LocalFileSystem) files).pathToFile(path).toPath();
        java.nio.file.Path whole = file.resolveSibling("." + file.getFileName() + "." + UUID.randomUUID() + ".tmp");
        try {
            Files.write(whole, content, StandardOpenOption.CREATE_NEW);
            // Hadoop's checksums of a file that had this name before would make this one unreadable. It needs none.
            Files.deleteIfExists(file.resolveSibling("." + file.getFileName() + ".crc"));
            Files.createLink(file, whole);
            return true;
        } catch (FileAlreadyExistsException exists) {
            throw exists;
        } catch (FileSystemException refused) {
            return false;
        } catch (UnsupportedOperationException refused) {
            return false;
        } finally {
            Files.deleteIfExists(whole);
        }
    }
}
