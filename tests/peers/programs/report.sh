#!/bin/sh
# A program that is no Python: hands over to the one that reports.
exec python3 -u "$(dirname "$0")/report.py" "$@"
