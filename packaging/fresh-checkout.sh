#!/bin/bash
# Do the README's two commands work one after the other, on a machine that has nothing but Rust? First for root, then for an
# ordinary user beside what root left: each with an empty home, no environment and a clone of its own. Nothing may warn.
# Run as root by `cargo xtask fresh`.
#   fresh-checkout.sh REPOSITORY SYSROOT FIRST SECOND
set -euo pipefail
repository=$1 sysroot=$2 first=$3 second=$4
user=sgfresh$$
# Not below $TMPDIR: root's may be closed to the user.
folder=$(mktemp -d /tmp/syncguard-fresh.XXXXXX)
store=/var/lib/syncguard
had_store=$([ ! -e "$store" ] || echo yes)

fail() {
    echo "error: $*" >&2
    exit 1
}

clean_up() {
    userdel "$user" 2>/dev/null || true
    rm -rf "$folder"
    # What root's first command made, unless root had one before.
    [ -n "$had_store" ] || rm -rf "$store"
}

# as WHO LINE: runs a line in the clone of this user, who sees nothing of our environment.
as() {
    local become=(env)
    [ "$1" = root ] || become=(setpriv --reuid "$user" --regid "$user" --clear-groups env)
    (cd "$folder/$1/syncguard" && "${become[@]}" -i HOME="$folder/$1" USER="$1" LANG=C.UTF-8 \
        PATH="$folder/rust/bin:$folder/$1/.cargo/bin:/usr/bin:/bin" sh -c "$2" 2>&1)
}

# both WHO: the two commands, in the order of the page.
both() {
    git clone -q "$repository" "$folder/$1/syncguard"
    # How this machine reaches crates.io, if not directly.
    if [ -f "${CARGO_HOME:-$HOME/.cargo}/config.toml" ]; then
        install -D -m 644 "${CARGO_HOME:-$HOME/.cargo}/config.toml" "$folder/$1/.cargo/config.toml"
    fi
    [ "$1" = root ] || chown -R "$user:$user" "$folder/$1"
    local said
    said=$(as "$1" "$first") || fail "$1: the first command failed: $said"
    [[ $said =~ ^"I hold demo:hello with fence "[0-9]{15}$ ]] || fail "$1: the first command said more than it should: $said"
    echo "ok: $1: $said"
    as "$1" "$second" | tee "$folder/$1/log" || fail "$1: the second command failed"
    ! grep -n '^warning:' "$folder/$1/log" || fail "$1: the second command warns"
    echo "ok: $1: $second"
    rm -rf "$folder/$1/syncguard"
}

trap clean_up EXIT
chmod 755 "$folder"
# The compiler where everybody can read it. Links where that is possible: it has half a gigabyte.
cp -al "$sysroot" "$folder/rust" 2>/dev/null || cp -a "$sysroot" "$folder/rust"
useradd --home-dir "$folder/user" --shell /bin/sh "$user"
both root
both user
