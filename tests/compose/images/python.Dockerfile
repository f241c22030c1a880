# Stands in for python:3.11-slim-bookworm where no registry is at hand: the same Debian with Debian's own Python 3.11.
FROM localhost/debian:bookworm
COPY apt/ /etc/apt/apt.conf.d/
COPY sources/ /etc/apt/sources.list.d/
RUN rm -f /etc/apt/sources.list && apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates tzdata python3.11 python3-pip python-is-python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /usr/lib/python3.11/EXTERNALLY-MANAGED
# The certificates that this machine trusts beside Debian's, for a build behind a mirror. Java takes them from here too.
COPY certificates/ /usr/local/share/ca-certificates/
RUN update-ca-certificates
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt LANG=C.UTF-8
COPY pip.conf /etc/pip.conf
