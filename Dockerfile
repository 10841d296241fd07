# MOSAIC for a CPU, without a window:  docker build -t mosaic . ;  docker run --rm -it --shm-size=1g -v "$PWD/var:/work/var" mosaic
# The volume has to belong to user 1000, or to whom --user names.
FROM python:3.11-slim AS build
# The compiler is for the C library that steps classic control; the wheel works without it, only more slowly.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE constraints.txt /source/
COPY src /source/src
COPY scripts/generate.py /source/scripts/
RUN pip install --no-cache-dir build \
    && PIP_CONSTRAINT=/source/constraints.txt python -m build --wheel --outdir /wheels /source

FROM python:3.11-slim
# MuJoCo renders through Mesa.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
# The build of torch for CPUs, from PyTorch's own index: much smaller than the one with CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir -c /wheels/constraints.txt --extra-index-url "$TORCH_INDEX" \
        "mosaic-rl[train,torch,video,plot,tensorboard,atari,mujoco,minigrid,sweep,hub,remote,metrics] @ file://$(ls /wheels/*.whl)" \
    && useradd --create-home --uid 1000 mosaic \
    && install --directory --owner mosaic /work
USER mosaic
WORKDIR /work
# The home of a container is new each time, and the volume is its user's choice: it is trusted.
ENV MOSAIC_VAR=/work/var MOSAIC_TRUST=/work/var
# Fails the build where something required is missing.
RUN mosaic doctor && mosaic daemon stop && rm -rf /work/var
CMD ["bash"]
