#!/usr/bin/env bash
# Installs this package and cactus-conform, editable and at the pinned versions, into .venv.
#
#   bash scripts/setup.sh              what every command but eval --lm-eval and serve needs to run
#   bash scripts/setup.sh llama-cpp    llama.cpp too, which reads GGUF files, built for this machine
#   bash scripts/setup.sh dev          the development tools too
#
# PYTHON names the interpreter (default: python3). Safe to repeat, and safe to run after an earlier run was killed.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

extras="report,playground,grammar${1:+,$1}"
python="${PYTHON:-python3}"
say() { printf '%s\n' "setup: $*" >&2; }
die() { say "$*"; exit 1; }

command -v "$python" >/dev/null || die "there is no '$python'; name an interpreter: make PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "Python 3.11 or newer is needed and $python is $("$python" -V 2>&1); name another: make PYTHON=python3.12"

# Two set-ups at once would destroy each other's .venv: the second waits (where there is no flock, it is not checked).
if command -v flock >/dev/null; then
    exec 9<scripts/setup.sh
    flock 9
fi

# A set-up that was killed leaves this marker behind, and pip may take half-written packages for whole: start afresh.
unfinished=.venv/.unfinished
if [ -e "$unfinished" ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    say "creating .venv with $("$python" -V 2>&1)"
    rm -rf .venv
    mkdir .venv
    touch "$unfinished"
    "$python" -m venv .venv || die "could not create .venv (on Debian and Ubuntu, install python3-venv first)"
fi
touch "$unfinished"

# Only a part of torch and transformers is ever imported: compiling all of it now would double the time of a set-up.
pip_install() { .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check "$@"; }

# On Linux the default build of torch brings gigabytes of CUDA libraries, so machines without an NVIDIA GPU get the CPU
# build: from wherever pip is configured to look, else from PyTorch's own index.
torch="$(grep '^torch==' constraints.txt)"
if [ "$(uname -s)" = Linux ] && ! nvidia-smi >/dev/null 2>&1; then
    torch="$torch+cpu"
    say "installing $torch (no NVIDIA GPU found)"
    pip_install --no-deps "$torch" 2>/dev/null ||
        pip_install --no-deps --index-url https://download.pytorch.org/whl/cpu "$torch" ||
        die "could not install $torch, neither from pip's configured sources nor from download.pytorch.org"
fi

# Naming torch again holds pip to the chosen build.
pip_install_pinned() { pip_install -c constraints.txt "$torch" "$@"; }

# llama-cpp-python is built from its source, without what only images and llama.cpp's own programs need, which is half of
# the work. Tests take a build for any processor of this kind, because pip keeps what it builds; who reads files of their
# own gets one for this processor, which pip neither keeps nor takes from what it kept.
if [ -n "${1:-}" ] && ! .venv/bin/python -c 'import llama_cpp' 2>/dev/null; then
    command -v "${CXX:-c++}" >/dev/null ||
        die "llama.cpp is built from source, which takes a C++ compiler (on Debian and Ubuntu: apt-get install g++)"
    native=OFF
    [ "$1" != llama-cpp ] || native=ON
    export CMAKE_ARGS="-DGGML_NATIVE=$native -DLLAVA_BUILD=OFF -DCMAKE_PROJECT_INCLUDE='$PWD/scripts/llama_cpp.cmake' ${CMAKE_ARGS:-}"
    say "llama.cpp is built too: a few minutes, once"
    [ "$native" = OFF ] || pip_install_pinned --no-cache-dir "$(grep '^llama[-_]cpp[-_]python==' constraints.txt)"
fi

say "installing cactus-decoding[$extras] and cactus-conform"
pip_install_pinned -e ".[$extras]" -e packages/conform

# The report's page is tested in a real browser: an installed one, else Debian's (as root), else Playwright's own.
install_browser() {
    local name
    for name in chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable chrome; do
        command -v "$name" >/dev/null && return
    done
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing a headless Chromium from the distribution's packages"
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium-headless-shell; } >/dev/null 2>&1 ||
            apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 || true
        for name in chromium-headless-shell chromium; do
            command -v "$name" >/dev/null && return
        done
    fi
    say "installing a headless Chromium with Playwright"
    .venv/bin/python -m playwright install --only-shell chromium ||
        say "no browser could be installed; install Chromium or Chrome, which one test needs"
}
[ "${1:-}" != dev ] || install_browser

rm "$unfinished"
say "done"
