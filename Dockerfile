# The labelling tool, without PyTorch:
#   docker build --tag handful .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/data" handful label photos --labels labels.csv --out labelled
#   docker run --rm --publish 127.0.0.1:8000:8000 --volume "$PWD:/data" handful studio photos --host 0.0.0.0 --port 8000 --no-browser
# For training: docker build --build-arg EXTRAS='[research]' --tag handful-research .
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
ARG EXTRAS=""
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/handful-*.whl)${EXTRAS}" \
    && useradd --uid 1000 --create-home handful \
    && install --directory --owner handful --mode 777 /data /cache
ENV HANDFUL_CACHE=/cache
USER 1000
WORKDIR /data
ENTRYPOINT ["handful"]
CMD ["--help"]
