# The order application and the `steadfaust` command, as nobody's user. docker-compose.yml says what runs.

# A wheel of the library with the hot path compiled (docs/adr/0012). It is built beside all that it imports: types
# are what makes compiled code fast.
FROM python:3.11.13-slim-bookworm AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev

# The versions that are tested together; what only tests, benchmarks and the local stack need stays out.
COPY requirements.txt pyproject.toml setup.py README.md LICENSE ./
RUN sed -e '/--hash=/d' -e 's/ \\$//' requirements.txt > versions.txt

COPY streams streams
RUN pip install --constraint versions.txt --editable ".[orders]" mypy setuptools \
    && STEADFAUST_COMPILED=1 pip wheel --no-deps --no-build-isolation --wheel-dir dist .

FROM python:3.11.13-slim-bookworm

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app
COPY --from=build /build/versions.txt /build/dist/ /tmp/
RUN pip install --constraint /tmp/versions.txt "$(ls /tmp/steadfaust-*.whl)[orders]" \
    && useradd --system --uid 10001 --home-dir /var/lib/steadfaust --create-home steadfaust
# The application is no part of the library. `pyproject.toml` says where its migrations and settings are.
COPY pyproject.toml ./
COPY agents agents
COPY tables tables
COPY schemas schemas
COPY ops ops

USER steadfaust
ENV PYTHONPATH=/app STEADFAUST_VAR=/var/lib/steadfaust
CMD ["steadfaust", "--help"]
