# PgBouncer of Debian with the settings beside this file; it starts as an unprivileged user and
# writes nothing but the names and passwords that it is given, into memory.
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends pgbouncer=1.18.* \
    && rm -rf /var/lib/apt/lists/*
COPY --chmod=0644 pgbouncer.ini /etc/pgbouncer/pgbouncer.ini
USER 10001
EXPOSE 6432
CMD ["sh", "-c", "umask 077 && printf '\"%s\" \"%s\"\\n' troupe \"$POSTGRES_PASSWORD\" > /run/pgbouncer/users.txt && exec pgbouncer /etc/pgbouncer/pgbouncer.ini"]
