# The order application and the `steadfaust` command, as nobody's user. docker-compose.yml says what runs.

# A wheel of the library with the hot path compiled (docs/adr/0012), in an environment of exactly the versions that
# are tested together, each checked by its hash. It is compiled beside all that it imports: types make it fast.
FROM python:3.11.13-slim-bookworm AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev

COPY requirements.txt pyproject.toml setup.py README.md LICENSE ./
COPY ops/image_requirements.py ops/
RUN python ops/image_requirements.py orders > image.txt \
    && python ops/image_requirements.py orders mypy setuptools > build.txt \
    && python -m venv /opt/steadfaust && python -m venv /opt/build \
    && /opt/steadfaust/bin/pip install --require-hashes --requirement image.txt \
    && /opt/build/bin/pip install --require-hashes --requirement build.txt

COPY streams streams
RUN STEADFAUST_COMPILED=1 /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/steadfaust/bin/pip install --no-deps dist/steadfaust-*.whl \
    && /opt/steadfaust/bin/pip check \
    && /opt/steadfaust/bin/pip uninstall --yes pip setuptools

FROM python:3.11.13-slim-bookworm

COPY --from=build /opt/steadfaust /opt/steadfaust
WORKDIR /app
RUN useradd --system --uid 10001 --home-dir /var/lib/steadfaust --create-home steadfaust
# The application is no part of the library. `pyproject.toml` says where its migrations and settings are.
COPY pyproject.toml ./
COPY agents agents
COPY tables tables
COPY schemas schemas
COPY ops/container_health.py ops/

# By number: Kubernetes checks that it is not root.
USER 10001
ENV PYTHONUNBUFFERED=1 PYTHONPATH=/app PATH=/opt/steadfaust/bin:$PATH STEADFAUST_VAR=/var/lib/steadfaust
CMD ["steadfaust", "--help"]
