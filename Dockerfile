# The order application and the `steadfaust` command, run by an unprivileged user. docker-compose.yml says what runs.

# The packages that the image needs, each with its version and hash. A stage of its own: wheels are fetched again
# when these lists change, not whenever pyproject.toml does.
FROM python:3.11.13-slim-bookworm AS requirements

WORKDIR /lists
COPY requirements.txt pyproject.toml ./
COPY ops/image_requirements.py ops/
RUN python ops/image_requirements.py orders > image.txt \
    && python ops/image_requirements.py orders mypy setuptools > build.txt

# A wheel of the library with the hot path compiled (docs/adr/0012), in an environment of exactly the versions that
# are tested together, each checked by its hash. It is compiled beside all that it imports: types make it fast.
FROM python:3.11.13-slim-bookworm AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev

# Only `pip download` goes to the index: both environments are made of the wheels that it has fetched.
COPY --from=requirements /lists/image.txt /lists/build.txt ./
RUN pip download --require-hashes --no-deps --only-binary :all: --dest wheels --requirement build.txt
RUN python -m venv /opt/steadfaust && python -m venv /opt/build \
    && /opt/steadfaust/bin/pip install --no-index --find-links wheels --require-hashes --requirement image.txt \
    && /opt/build/bin/pip install --no-index --find-links wheels --require-hashes --requirement build.txt

COPY pyproject.toml setup.py README.md LICENSE ./
COPY streams streams
RUN STEADFAUST_COMPILED=1 /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/steadfaust/bin/pip install --no-deps dist/steadfaust-*.whl \
    && /opt/steadfaust/bin/pip check \
    && /opt/steadfaust/bin/pip uninstall --yes pip setuptools

FROM python:3.11.13-slim-bookworm

COPY --from=build /opt/steadfaust /opt/steadfaust
WORKDIR /app
# Group 0 may write where user 10001 may: OpenShift runs a container as some uid of group 0. The directory is made
# without the files of /etc/skel, which new volumes would get.
RUN groupadd --gid 10001 steadfaust \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/steadfaust --shell /usr/sbin/nologin steadfaust \
    && install --directory --owner 10001 --group 0 --mode 0770 /var/lib/steadfaust
# The application is no part of the library. `pyproject.toml` says where its migrations and settings are.
COPY pyproject.toml ./
COPY agents agents
COPY tables tables
COPY schemas schemas
COPY ops/container_health.py ops/

# By number: Kubernetes checks that it is not root.
USER 10001:10001
# HOME by name, since a uid without an entry in /etc/passwd would have `/`.
ENV PYTHONUNBUFFERED=1 PYTHONPATH=/app PATH=/opt/steadfaust/bin:$PATH \
    HOME=/var/lib/steadfaust STEADFAUST_VAR=/var/lib/steadfaust
CMD ["steadfaust", "--help"]
