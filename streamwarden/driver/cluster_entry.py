"""The script that `spark-submit` runs in cluster deploy mode: a driver with the usual arguments.

Spark starts a JVM on a machine of the cluster, and that JVM starts this script. Its exit code becomes the JVM's, and
so the cluster's verdict: 0 stopped, 1 failed.
"""

from streamwarden.driver.__main__ import run
from streamwarden.spark.cluster_mode import parent_jvm

if __name__ == "__main__":
    # Now: should the JVM die early, this process would get another parent.
    parent_jvm()
    run()
