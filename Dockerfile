# Any image with Python 3.11 or newer will do as the base.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml requirements.txt README.md LICENSE ./
COPY worker worker
COPY db db
COPY dashboard dashboard
# The pins bind what the package needs; what only tests and checks need is not installed.
RUN python3 -m venv /opt/jobq \
 && /opt/jobq/bin/pip install --no-cache-dir --constraint requirements.txt '.[dashboard]'

FROM ${BASE}
RUN useradd --system --uid 10001 --no-create-home jobq
COPY --from=build /opt/jobq /opt/jobq
ENV PATH=/opt/jobq/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /app
USER jobq
ENTRYPOINT ["jobq"]
CMD ["--help"]
