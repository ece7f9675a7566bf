#!/usr/bin/env bash
# Check the viewer's page: types, style, unit tests, and that the committed page is byte-identical to a new build.
# The built page is committed so that installing the package does not need Node.js.
set -euo pipefail
cd "$(dirname "$0")/../web"
npm run --silent check
npm run --silent test
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
npm run --silent build -- --outDir "$built" --logLevel error
if ! cmp "$built/index.html" ../src/kinetoscope/viewer/static/index.html; then
  echo "The committed page is out of date: run 'make web' and commit the result." >&2
  exit 1
fi
