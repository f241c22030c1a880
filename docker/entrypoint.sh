#!/bin/sh
# The image's entry point. Spark's pods give it `driver` or `executor`, as they would Spark's own image; everything else is
# run as it is. Spark comes from pyspark's own wheel: its version is the drivers' version by construction.
set -eu

spark_home() {
    python3 -c 'from importlib.util import find_spec; print(find_spec("pyspark").submodule_search_locations[0])'
}

case "${1:-}" in
driver)
    shift
    SPARK_HOME="$(spark_home)"
    export SPARK_HOME
    # The pod's own address: the driver's service leads to it.
    exec "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    SPARK_HOME="$(spark_home)"
    export SPARK_HOME
    # Options of the JVM come one by one, in the order of their numbers.
    shift $#
    count=0
    while option="$(printenv "SPARK_JAVA_OPT_$count")"; do
        set -- "$@" "$option"
        count=$((count + 1))
    done
    exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
