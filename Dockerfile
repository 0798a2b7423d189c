# syntax=docker/dockerfile:1
# One image per process: docker build --target api|ui|worker. Only the worker's has torch.

FROM python:3.11-slim-bookworm AS base
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/var/lib/stillhouse/huggingface \
    STILLHOUSE_HOME=/var/lib/stillhouse \
    STILLHOUSE_HOST=0.0.0.0
# The state folder exists, owned by the user, so that a fresh volume mounted there is too.
RUN useradd --uid 1000 --create-home stillhouse \
    && install --directory --owner=stillhouse --group=stillhouse /var/lib/stillhouse
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./

# In each image the dependencies come first: without sources, `.` is an empty package with the same requirements.
FROM base AS api
RUN pip install --constraint constraints.txt '.[api]'
COPY app ./app
RUN pip install --no-deps --force-reinstall .
USER 1000
WORKDIR /var/lib/stillhouse
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["uvicorn", "app.asgi:app", "--host", "0.0.0.0", "--port", "8000", "--timeout-graceful-shutdown", "2"]

FROM base AS ui
RUN pip install --constraint constraints.txt '.[ui]'
COPY app ./app
COPY ui ./ui
RUN pip install --no-deps --force-reinstall .
USER 1000
WORKDIR /var/lib/stillhouse
EXPOSE 7860
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/', timeout=4)"]
CMD ["python", "-m", "ui.main"]

FROM base AS worker
RUN pip install --constraint constraints.txt '.[worker]'
COPY app ./app
COPY worker ./worker
RUN pip install --no-deps --force-reinstall .
USER 1000
WORKDIR /var/lib/stillhouse
# A stop lets a training keep a checkpoint and hand its job back (compose gives it a minute).
ENV TQDM_DISABLE=1 OMP_WAIT_POLICY=PASSIVE QUEUE=training
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s \
    CMD ["sh", "-c", "python -m worker.alive $QUEUE@$HOSTNAME"]
CMD ["celery", "-A", "worker.celery_app", "worker", "-Q", "training", "-n", "training@%h", "--loglevel=INFO", \
     "--without-gossip", "--without-mingle", "--pool=solo"]
