# docker build -t popqorn .
# docker run --rm --user "$(id -u)" -v "$PWD:/data" popqorn certify model.onnx data.npz --norm inf --out rows.csv
#
# torch is the build that pip finds. For the CPU build (a much smaller image) or for one with another CUDA, pass its index, as the
# selector on pytorch.org names it: --build-arg TORCH_INDEX=URL. With a CUDA build: docker run --gpus all, and --device cuda.
FROM python:3.11-slim

ARG TORCH_INDEX=""
WORKDIR /opt/popqorn
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[experiments,files,onnx,tables]"

RUN useradd --create-home --uid 1000 popqorn && mkdir /data && chown popqorn /data
USER popqorn
WORKDIR /data
ENTRYPOINT ["popqorn"]
CMD ["--help"]
