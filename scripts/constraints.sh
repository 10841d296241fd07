#!/bin/sh
# Writes constraints.txt: all extras resolved together, for the oldest Python that is supported.
set -eu
cd "$(dirname "$0")/.."
new=$(mktemp)
trap 'rm -f "$new"' EXIT
sed -n '/^#/p' constraints.txt > "$new"
{
    # Local build tags such as +cpu are removed; torch is updated only by hand (its newest build may be untested).
    echo "torch==$(sed -n 's/^torch==//p' constraints.txt)" | .venv/bin/uv pip compile --quiet --no-header --no-annotate \
        --python-version 3.11 --all-extras -c - pyproject.toml | sed 's/+[a-z0-9.]*$//'
    .venv/bin/uv --version | sed 's/^uv \([0-9.]*\).*/uv==\1/'
} | LC_ALL=C sort -f >> "$new"
cat "$new" > constraints.txt
