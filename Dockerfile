# The order application and the `steadfaust` command, as nobody's user. docker-compose.yml says what runs.
FROM python:3.11.13-slim-bookworm

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

# The versions that are tested together; what only tests, benchmarks and the local stack need stays out.
COPY requirements.txt pyproject.toml README.md ./
RUN sed -e '/--hash=/d' -e 's/ \\$//' requirements.txt > /tmp/versions.txt

COPY streams streams
COPY agents agents
COPY tables tables
COPY schemas schemas
COPY demo demo
COPY benchmarks benchmarks
COPY chaos chaos
COPY ops ops
RUN pip install --constraint /tmp/versions.txt --editable . \
    && useradd --system --uid 10001 --home-dir /var/lib/steadfaust --create-home steadfaust

USER steadfaust
ENV STEADFAUST_VAR=/var/lib/steadfaust
CMD ["steadfaust", "--help"]
