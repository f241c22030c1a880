# Stands in for prom/prometheus where no registry is at hand: Debian's own version, and a wget.
FROM localhost/debian:bookworm
COPY apt/ /etc/apt/apt.conf.d/
COPY sources/ /etc/apt/sources.list.d/
RUN rm -f /etc/apt/sources.list && apt-get update \
    && apt-get install -y --no-install-recommends prometheus busybox && rm -rf /var/lib/apt/lists/* \
    && ln -s /bin/busybox /usr/bin/wget && mkdir -p /prometheus && chown nobody /prometheus
USER nobody
ENTRYPOINT ["/usr/bin/prometheus"]
