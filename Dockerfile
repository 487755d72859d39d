# Two images from one file:
#   docker build -t mantissa-studio .                     everything, including torch
#   docker build -t mantissa-studio-web --target web .    pages, API and worker, without training
#
#   docker run --gpus all -p 127.0.0.1:8000:8000 -v mantissa:/data mantissa-studio
#
# It listens on all addresses, because a container's loopback is not reachable from outside, so it
# requires accounts: the log has a link to create the first administrator. Publish the port on
# 127.0.0.1 as above, or put a TLS proxy in front: deploy/compose.yaml does. To reach the studio by a
# name other than localhost, set STUDIO_ALLOWED_HOSTS. Nothing outlives a container, so runs save a
# checkpoint when it is stopped; give them time for it: docker stop --time 660.

FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY . .
# This image has no npm: the build hook installs one from a wheel, only in this stage.
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim-bookworm AS web
ENV PYTHONUNBUFFERED=1 \
    STUDIO_HOME=/data \
    STUDIO_SIGN_IN=accounts \
    STUDIO_ON_STOP=drain \
    STUDIO_ALLOWED_HOSTS=localhost,127.0.0.1,[::1]
RUN useradd --uid 10001 --create-home studio \
 && install --directory --mode 0700 --owner studio --group studio /data
COPY constraints.txt /etc/studio/
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /etc/studio/constraints.txt /wheels/*.whl
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/api/v1/health', timeout=4)"]
STOPSIGNAL SIGTERM
CMD ["studio", "serve", "--host", "0.0.0.0"]

FROM web AS full
USER 0
# Triton compiles a launcher for each kernel with a C compiler. Debian keeps only one version of each
# package, so pinning one would eventually break the build.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    wheel=$(echo /wheels/*.whl) \
 && pip install --no-cache-dir --constraint /etc/studio/constraints.txt "${wheel}[train]"
USER 10001
