#!/usr/bin/env bash
# Builds the image of a release, from base images by their digests:
#
#   deploy/build_release.sh IMAGE:TAG [OPTIONS OF docker build]
#
# It refuses while deploy/.env lacks a digest: a tag can be another image tomorrow.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if (($# == 0)); then
    echo "usage: deploy/build_release.sh IMAGE:TAG [OPTIONS OF docker build]" >&2
    exit 2
fi
tag=$1
shift
declare -A digests
while IFS='=' read -r name digest; do
    [[ -z $name || $name == '#'* ]] || digests[$name]=$digest
done <"$here/.env"
for name in PYTHON_DIGEST DOCKERFILE_DIGEST PROMETHEUS_DIGEST GRAFANA_DIGEST; do
    if [[ ! ${digests[$name]-} =~ ^@sha256:[0-9a-f]{64}$ ]]; then
        echo "deploy/.env: $name is not @sha256: and 64 hex digits, so a release cannot be built;" \
            "RELEASING.md says where the digest is" >&2
        exit 1
    fi
done
exec docker build --file "$here/Dockerfile" --tag "$tag" \
    --build-arg "PYTHON_DIGEST=${digests[PYTHON_DIGEST]}" \
    --build-arg "BUILDKIT_SYNTAX=docker/dockerfile:1${digests[DOCKERFILE_DIGEST]}" \
    "$@" "$here/.."
