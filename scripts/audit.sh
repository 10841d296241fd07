#!/bin/sh
# Asks PyPI whether the versions in constraints.txt have known vulnerabilities. Fails if one has; prints a sentence and
# succeeds where that cannot be asked, such as without a network or behind a mirror that holds packages only.
set -eu
cd "$(dirname "$0")/.."
release=$(sed -n 's|^click==\(.*\)|click/\1|p' constraints.txt)
if ! .venv/bin/python - "https://pypi.org/pypi/$release/json" 2>/dev/null <<'PYTHON'
import json, sys, urllib.request

with urllib.request.urlopen(sys.argv[1], timeout=20) as reply:
    json.load(reply)["vulnerabilities"]
PYTHON
then
    echo "audit: skipped, because PyPI cannot be asked for vulnerabilities from here (https://pypi.org/pypi/$release/json)." >&2
    exit 0
fi
exec .venv/bin/uv tool run pip-audit --requirement constraints.txt --no-deps --disable-pip --vulnerability-service pypi --progress-spinner off
