#!/usr/bin/env bash
# Checks the viewer's page: types, style, unit tests, and that the committed page is what its sources make, to the byte.
# It is committed as it is built, so that installing the package needs no node.
set -euo pipefail
cd "$(dirname "$0")/../web"
npm run --silent check
npm run --silent test
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
npm run --silent build -- --outDir "$built" --logLevel error
if ! cmp "$built/index.html" ../src/kinetoscope/viewer/static/index.html; then
  echo "The committed page is not what its sources make: run 'make web' and commit what it writes." >&2
  exit 1
fi
