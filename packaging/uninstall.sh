#!/bin/sh
# Removes what the archive brought, and nothing else: locks stay where they are.
#   sh PREFIX/share/doc/syncguard/uninstall.sh
set -eu
prefix=$(cd "$(dirname "$0")/../../.." && pwd)
while read -r file; do
    rm -f "$prefix/$file"
done <<'FILES'
@FILES@
FILES
# Folders that are empty now were the archive's, or nobody's.
for folder in share/doc/syncguard share/doc share/man/man1 share/man share/bash-completion/completions \
    share/bash-completion share/zsh/site-functions share/zsh share/fish/vendor_completions.d share/fish share bin; do
    rmdir "$prefix/$folder" 2>/dev/null || true
done
