#!/bin/sh
# Airflow's API server, with the admin user's password taken from the environment.
#
# The simple auth manager reads passwords from a JSON file, and makes one up and prints it to the log where a user has
# none. So the file is written first, readable by this user only, and the variable is gone before Airflow starts.
set -eu
umask 077
: "${AIRFLOW_ADMIN_PASSWORD:?is not set}"
python3 -c 'import json, os, sys; json.dump({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}, sys.stdout)' \
    > "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
unset AIRFLOW_ADMIN_PASSWORD
exec airflow api-server --host 0.0.0.0 --port 8080
