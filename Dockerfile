# The service on a CPU; how to run it: docs/serve.md
FROM python:3.13-slim

WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY experiments experiments
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu --constraint constraints.txt torch==2.13.0+cpu '.[serve,heic]'

RUN useradd --uid 1000 --create-home dualnet && install --directory --owner=dualnet /state
USER dualnet
WORKDIR /home/dualnet
VOLUME /state
EXPOSE 8000
CMD ["dualnet", "serve", "--state", "/state", "--host", "0.0.0.0", "--token-file", "/token", "--device", "cpu"]
