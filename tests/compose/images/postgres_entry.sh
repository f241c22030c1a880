#!/bin/sh
# What docker-compose.yml uses of the official image's entrypoint: makes the database named by POSTGRES_*, then serves.
set -eu
data="$PGDATA"
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$data" /var/run/postgresql
    chown -R postgres:postgres "$data" /var/run/postgresql
    chmod 700 "$data"
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
export HOME=/var/lib/postgresql
if [ ! -s "$data/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?}" "${POSTGRES_USER:?}" "${POSTGRES_DB:?}"
    umask 077
    printf '%s\n' "$POSTGRES_PASSWORD" > /tmp/password
    initdb -D "$data" -U "$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 --auth-local=trust \
        -E UTF8 --locale=C
    rm /tmp/password
    echo 'host all all all scram-sha-256' >> "$data/pg_hba.conf"
    pg_ctl -D "$data" -o "-c listen_addresses='' -k /var/run/postgresql" -w start
    psql -h /var/run/postgresql -U "$POSTGRES_USER" -d postgres -c "create database \"$POSTGRES_DB\""
    pg_ctl -D "$data" -m fast -w stop
fi
exec postgres -D "$data" -c listen_addresses='*' -k /var/run/postgresql
