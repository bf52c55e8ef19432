# Barnabas, a Kafka broker. How to run the image: docs/deployment.md.
# Built by an engine, and what it built run, in compat_tests/packaging/test_image.py.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS build
WORKDIR /build
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir dist .
# No pip in the image: the environment is made without it and filled from outside.
RUN python -m venv --without-pip /opt/barnabas \
 && python -m pip --python /opt/barnabas/bin/python install --no-cache-dir dist/barnabas-*.whl

FROM python:${PYTHON_VERSION}-slim
COPY --from=build /opt/barnabas /opt/barnabas
# The image's own defaults stand in a file of their own, below the one that users mount.
RUN printf '%s\n' 'listeners=PLAINTEXT://0.0.0.0:9092' 'log.dirs=/var/lib/barnabas' \
      > /opt/barnabas/image.properties \
 && install -d /etc/barnabas && touch /etc/barnabas/server.properties \
 && install -d -o 10001 -g 10001 /var/lib/barnabas
ENV PATH=/opt/barnabas/bin:$PATH
# By number: Kubernetes checks runAsNonRoot without looking into the image.
USER 10001:10001
WORKDIR /var/lib/barnabas
VOLUME ["/var/lib/barnabas"]
EXPOSE 9092
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 \
    CMD ["barnabas", "health", "--config", "/opt/barnabas/image.properties", "--config", "/etc/barnabas/server.properties", "--env"]
# No shell: the broker is process 1 and gets the signals. Arguments are added: docker run IMAGE --set num.partitions=3
ENTRYPOINT ["barnabas", "start", "--config", "/opt/barnabas/image.properties", "--config", "/etc/barnabas/server.properties", "--env"]
