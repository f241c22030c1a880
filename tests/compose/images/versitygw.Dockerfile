# Stands in for versity/versitygw where no registry is at hand: the program that `make s3-server` builds, and a wget.
FROM localhost/debian:bookworm
COPY apt/ /etc/apt/apt.conf.d/
COPY sources/ /etc/apt/sources.list.d/
RUN rm -f /etc/apt/sources.list && apt-get update \
    && apt-get install -y --no-install-recommends busybox && rm -rf /var/lib/apt/lists/* && ln -s /bin/busybox /usr/bin/wget
COPY versitygw /usr/local/bin/versitygw
ENTRYPOINT ["versitygw"]
