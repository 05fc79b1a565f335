#!/bin/sh
# A wheel that holds the compiled kernels, for this kind of machine, this Python and this Numba:
#
#   sh ops/wheel.sh PYTHON FOLDER
#
# PYTHON has what graphtide needs, pip and setuptools. Nothing is fetched; the checkout is left as it is.
set -eu
python=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wheel() {  # SOURCE FOLDER [OPTION...]
    from=$1 to=$2
    shift 2
    "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$to" "$@" "$from"
}

# What the checkout's own wheel would install is what the kernels are compiled from, and the source of the other wheel:
# the root of either is the package.
cp -R pyproject.toml README.md LICENSE ./*.py py.typed compute daemon gpma ops partition "$work"
wheel "$work" "$work/plain"
"$python" -m zipfile -e "$work"/plain/*.whl "$work/tree"
cp pyproject.toml README.md LICENSE "$work/tree/graphtide"
PYTHONPATH=$work/tree "$python" -P -m graphtide kernels --portable
tags=$("$python" -c 'import sys, sysconfig
print(f"--python-tag cp{sys.version_info[0]}{sys.version_info[1]} --plat-name", sysconfig.get_platform().replace("-", "_").replace(".", "_"))')
wheel "$work/tree/graphtide" "$folder" "--config-settings=--build-option=$tags"
