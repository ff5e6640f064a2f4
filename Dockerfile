# One image for every process of Inclavate: `web`, `worker`, `sweeper` and the commands. See docs/operations.md.
FROM python:3.11-slim AS packages
COPY requirements/hosted.txt /tmp/hosted.txt
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r /tmp/hosted.txt

FROM python:3.11-slim
RUN useradd --system --uid 10001 --user-group --create-home inclavate \
    && install --directory --owner inclavate --group inclavate --mode 0700 /data \
    && printf '#!/bin/sh\nexec python -m inclavate.cli "$@"\n' > /usr/local/bin/inclavate \
    && chmod 0755 /usr/local/bin/inclavate
COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/inclavate \
    PYTHONUNBUFFERED=1 \
    INCLAVATE_DATA_DIR=/data \
    INCLAVATE_HOST=0.0.0.0
WORKDIR /opt/inclavate
COPY LICENSE manage.py ./
COPY config config
COPY migrations migrations
COPY storage storage
COPY templates templates
COPY workers workers
COPY inclavate inclavate
# As the packages were: the user of the image cannot write here.
RUN python -m compileall -q inclavate workers storage migrations
USER inclavate
EXPOSE 8001
ENTRYPOINT ["inclavate"]
CMD ["web"]
