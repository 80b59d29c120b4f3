#!/bin/sh
# Tries releases of llama-cpp-python beside the one that is installed, each built in a folder of its own (minutes of one
# core, once): sh scripts/try_llama_cpp.sh 0.3.34 0.3.35
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
folders=${FOLDERS:-/tmp/llama-cpp-releases}
export CMAKE_ARGS="${CMAKE_ARGS:--DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DCMAKE_PROJECT_INCLUDE='$PWD/scripts/llama_cpp.cmake'}"
for release in "$@"; do
    [ -d "$folders/$release" ] || "$python" -m pip install -q --no-deps --target "$folders/$release" "llama-cpp-python==$release"
    PYTHONPATH="$folders/$release${PYTHONPATH:+:$PYTHONPATH}" "$python" -c \
        "import llama_cpp; assert llama_cpp.__version__ == '$release', llama_cpp.__file__; print('llama-cpp-python', '$release')"
    PYTHONPATH="$folders/$release${PYTHONPATH:+:$PYTHONPATH}" "$python" -m pytest -q tests/engines/llama_cpp/models
done
