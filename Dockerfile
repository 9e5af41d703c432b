# hola in a container, for CPUs by default:
#     docker build -t hola .
#     docker run --rm -it -v "$PWD:/work" hola generate -m my-model -p 'Once upon a time'
# With CUDA, in two images of NVIDIA's (the driver is the host's: docker run --gpus all):
#     docker build -t hola --build-arg BUILD_IMAGE=nvidia/cuda:12.4.1-devel-ubuntu22.04 \
#         --build-arg RUN_IMAGE=nvidia/cuda:12.4.1-runtime-ubuntu22.04 .
ARG BUILD_IMAGE=debian:bookworm-slim
ARG RUN_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
    gcc libc6-dev make binutils pkg-config libjansson-dev libarchive-dev libedit-dev
WORKDIR /src
COPY . .
RUN make clean && make install NO_APT=1 MPI= PREFIX=/usr/local DESTDIR=/out

FROM ${RUN_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends libjansson4 libarchive13 libedit2 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /out/usr/local /usr/local
RUN ldconfig
WORKDIR /work
ENTRYPOINT ["hola"]
CMD ["help"]
