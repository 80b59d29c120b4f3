#!/usr/bin/env bash
# Installs this package and cactus-conform, editable, beside vLLM's CPU engine at pinned versions into .venv-vllm: its own environment,
# because the engine pins versions that differ from constraints.txt.
#
#   bash scripts/setup_vllm.sh
#
# PYTHON names the interpreter (default: python3). Safe to repeat, and safe to run after an earlier run was killed.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
venv=.venv-vllm
unfinished="$venv/.unfinished"
say() { printf '%s\n' "setup: $*" >&2; }
die() { say "$*"; exit 1; }

[ "$(uname -s)" = Linux ] || die "vLLM's CPU engine is there for Linux only"

# Two set-ups at once would destroy each other's work: the second waits (where there is no flock, it is not checked).
if command -v flock >/dev/null; then
    exec 9<scripts/setup_vllm.sh
    flock 9
fi

# What a killed set-up leaves behind may look whole to pip: start afresh.
if [ -e "$unfinished" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "creating $venv with $("$python" -V 2>&1)"
    rm -rf "$venv"
    mkdir "$venv"
    touch "$unfinished"
    "$python" -m venv "$venv" || die "could not create $venv (on Debian and Ubuntu, install python3-venv first)"
fi
touch "$unfinished"

pip_install() { "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check --no-deps "$@"; }

torch="$(grep '^torch==' requirements-vllm.txt)+cpu"
say "installing $torch and vLLM's CPU engine (3.5 GB)"
pip_install "$torch" 2>/dev/null ||
    pip_install --index-url https://download.pytorch.org/whl/cpu "$torch" ||
    die "could not install $torch, neither from pip's configured sources nor from download.pytorch.org"
pip_install -r requirements-vllm.txt
pip_install -e . -e packages/conform

rm "$unfinished"
say "done"
