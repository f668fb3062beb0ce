# The service: control loop, REST API and dashboard. Fragments of the embedded cluster train in this image, too.
FROM python:3.11.13-slim-bookworm

# The CPU build of torch: a container with the embedded cluster has no use for several GB of CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /opt/oakum
COPY pyproject.toml constraints.txt README.md ./
COPY solver solver
COPY worker worker
COPY service service
COPY client client
COPY migrations migrations
COPY examples examples
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url "${TORCH_INDEX}" \
        '.[service,worker,examples]' \
    && useradd --create-home oakum \
    && mkdir --mode=700 /var/lib/oakum && chown oakum /var/lib/oakum

USER oakum
ENV OAKUM_DATA_DIR=/var/lib/oakum \
    OAKUM_HOST=0.0.0.0 \
    OAKUM_PLAIN_HTTP=1 \
    OAKUM_PORT=8470 \
    PYTHONUNBUFFERED=1
VOLUME /var/lib/oakum
EXPOSE 8470
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=12 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8470/readyz', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["oakum"]
CMD ["serve"]
