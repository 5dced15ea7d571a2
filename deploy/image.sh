#!/usr/bin/env bash
# Lays out what is in the container image: dtrain, the few libraries of the system that it is linked to, and a user who is not root.
# `deploy/image.sh target/release/dtrain FOLDER`; deploy/Dockerfile calls it, and so does the test.
#
# It holds no Python, no CUDA and no ffmpeg: NVIDIA's container runtime brings the driver, and DTRAIN_LIBRARY_PATH names a volume with
# NVRTC and NCCL.
set -euo pipefail
binary=${1:?usage: deploy/image.sh BINARY FOLDER} image=${2:?usage: deploy/image.sh BINARY FOLDER}

mkdir -p "$image"/{usr/local/bin,etc,tmp,proc,dev,sys,work}
install -m 755 "$binary" "$image/usr/local/bin/dtrain"
strip --strip-unneeded "$image/usr/local/bin/dtrain"
# Each at the path where the dynamic linker looks for it.
ldd "$binary" | grep --only-matching '/[^ )]*' | while read -r library; do
    install -D -m 755 "$(readlink -f "$library")" "$image$library"
done
echo 'dtrain:x:65532:65532::/work:/sbin/nologin' >"$image/etc/passwd"
echo 'dtrain:x:65532:' >"$image/etc/group"
echo 'hosts: files dns' >"$image/etc/nsswitch.conf"
chmod 1777 "$image/tmp"
if [ "$(id -u)" = 0 ]; then chown 65532:65532 "$image/work"; fi
