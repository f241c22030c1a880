#!/bin/sh
# A daemon of Spark's standalone cluster from pyspark's own wheel: its version is the drivers' version by construction.
# Usage: spark_daemon.sh CLASS ARGUMENTS...
set -eu
SPARK_HOME="$(python3 -c 'from importlib.util import find_spec; print(find_spec("pyspark").submodule_search_locations[0])')"
export SPARK_HOME
exec "$SPARK_HOME/bin/spark-class" "$@"
