# Stands in for postgres:16-bookworm where no registry is at hand: the server's programs from Maven, Debian's client.
FROM localhost/debian:bookworm
COPY apt/ /etc/apt/apt.conf.d/
COPY sources/ /etc/apt/sources.list.d/
RUN rm -f /etc/apt/sources.list && apt-get update \
    && apt-get install -y --no-install-recommends postgresql-client-15 libxml2 && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 999 --user-group --home-dir /var/lib/postgresql --create-home postgres \
    && mkdir -p /var/lib/postgresql/data /var/run/postgresql && chown postgres /var/lib/postgresql/data /var/run/postgresql
COPY postgres/ /opt/pg/
RUN cp /usr/lib/postgresql/15/bin/psql /usr/lib/postgresql/15/bin/pg_isready /usr/local/bin/ \
    && /opt/pg/bin/postgres --version && pg_isready --version
ENV PATH=/opt/pg/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin PGDATA=/var/lib/postgresql/data
COPY --chmod=755 postgres_entry.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
