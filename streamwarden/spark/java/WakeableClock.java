package streamwarden;

import java.lang.reflect.Field;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import org.apache.spark.util.SystemClock;

/**
 * The clock by which a query waits for its next trigger: {@link #wake} ends that wait.
 *
 * <p>Spark asks the clock for the time, and to wait until one, and otherwise aligns triggers itself: after a batch that
 * was begun early it waits for the next whole multiple of the interval.
 */
public final class WakeableClock extends SystemClock {

    private final transient MicroBatchExecution execution;
    private final AtomicBoolean awake = new AtomicBoolean();
    private transient volatile Thread waiting;

    private WakeableClock(MicroBatchExecution execution) {
        this.execution = execution;
    }

    /**
     * Give a query such a clock.
     *
     * @param query one that was just started, with a trigger of a processing time
     * @throws ReflectiveOperationException if Spark keeps it elsewhere than 4.2 does
     */
    public static WakeableClock of(StreamingQueryWrapper query) throws ReflectiveOperationException {
        WakeableClock clock = new WakeableClock((MicroBatchExecution) query.streamingQuery());
        // For the executor of triggers that the query's own thread makes in this moment, or has made.
        put(StreamExecution.class, "triggerClock", clock.execution, clock);
        clock.take();
        return clock;
    }

    /** End the wait, or the next one if nobody waits. */
    public void wake() throws ReflectiveOperationException {
        take();
        awake.set(true);
        // Of no thread this does nothing.
        LockSupport.unpark(waiting);
    }

    @Override
    public long waitTillTime(long target) {
        waiting = Thread.currentThread();
        try {
            while (getTimeMillis() < target && !awake.get()) {
                if (Thread.currentThread().isInterrupted()) {
                    // A stop: Spark's own wait throws what Spark expects.
                    return super.waitTillTime(target);
                }
                LockSupport.parkUntil(this, target);
            }
            awake.set(false);
            return getTimeMillis();
        } finally {
            waiting = null;
        }
    }

    private void take() throws ReflectiveOperationException {
        ProcessingTimeExecutor executor = (ProcessingTimeExecutor) execution.triggerExecutor();
        if (executor != null && executor.clock() != this) {
            put(ProcessingTimeExecutor.class, "clock", executor, this);
        }
    }

    private static void put(Class owner, String name, Object object, Object value) throws ReflectiveOperationException {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        field.set(object, value);
    }
}
