#!/bin/sh
# Make a virtual environment with what requirements.lock and requirements.txt name.
# usage: install.sh VENV, beside those files; ACCELERATOR and TORCH_INDEX_URL as in the Dockerfile.
set -eu
venv=$1
here=$(cd "$(dirname "$0")" && pwd)
wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT

case "${ACCELERATOR:-cuda}" in
cuda)
    cp "$here/requirements.lock" "$wanted"
    ;;
cpu)
    if [ -z "${TORCH_INDEX_URL:-}" ]; then
        echo "ACCELERATOR=cpu needs TORCH_INDEX_URL, an index with CPU builds of torch" >&2
        exit 2
    fi
    grep -vE '^(nvidia-|cuda-|triton==)' "$here/requirements.lock" > "$wanted"
    ;;
*)
    echo "ACCELERATOR=$ACCELERATOR: must be cuda or cpu" >&2
    exit 2
    ;;
esac
cat "$here/requirements.txt" >> "$wanted"

if [ "${PRINT_ONLY:-}" ]; then
    cat "$wanted"
    exit 0
fi

python3.12 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --no-cache-dir "$(grep '^uv==' "$here/requirements.lock")"
# The best match over both indexes: the CPU index has torch and little else.
"$venv/bin/uv" pip sync --python "$venv/bin/python" \
    ${TORCH_INDEX_URL:+--index "$TORCH_INDEX_URL" --index-strategy unsafe-best-match} "$wanted"
