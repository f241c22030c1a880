package streamwarden;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;

/** A commit of Delta's log. */
final class Commit {

    private Commit() {}

    /** Return its file's content: an action a line. */
    static byte[] content(Iterator<String> actions) throws IOException {
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            content.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
            content.write('\n');
        }
        return content.toByteArray();
    }
}
