# Two images from one file:
#   docker build -t mantissa-studio .                     all of it, with torch
#   docker build -t mantissa-studio-web --target web .    pages, API and worker; runs cannot train in it
#
#   docker run --gpus all -p 127.0.0.1:8000:8000 -v mantissa:/data mantissa-studio
#
# It listens to all addresses because a container's own loopback is reachable from nowhere, so people
# sign in with accounts: the log has a link for the first of them. Publish the port on 127.0.0.1, as
# above, or put a proxy with TLS before it: see docs/security.md. Who reaches the studio by another
# name than localhost gives that name in STUDIO_ALLOWED_HOSTS.

FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY . .
# There is no npm here: the build hook asks pip for the one in a wheel, and it stays in this stage.
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim-bookworm AS web
ENV PYTHONUNBUFFERED=1 \
    STUDIO_HOME=/data \
    STUDIO_SIGN_IN=accounts \
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
# Triton compiles a launcher for each kernel with the C compiler it finds. Debian keeps one version
# of each package, so a pin would only break the build some day.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    wheel=$(echo /wheels/*.whl) \
 && pip install --no-cache-dir --constraint /etc/studio/constraints.txt "${wheel}[train]"
USER 10001
