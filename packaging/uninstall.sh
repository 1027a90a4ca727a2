#!/bin/sh
# Removes what the archive brought, and nothing else: locks stay where they are.
#   sh PREFIX/share/doc/syncguard/uninstall.sh
set -eu
prefix=$(cd "$(dirname "$0")/../../.." && pwd)
cd "$prefix"
while read -r file; do
    rm -f "$file"
    # Folders that are empty now were the archive's, or nobody's.
    rmdir -p "$(dirname "$file")" 2>/dev/null || true
done <<'FILES'
@FILES@
FILES
