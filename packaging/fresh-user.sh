#!/bin/sh
# Does it install for somebody who has nothing? A new user with an empty home and no Rust installs the package, then the
# archive, runs the README's first command, reads the manual, completes in bash and zsh, and removes everything.
# Run as root by `cargo xtask dist --check`.
#   fresh-user.sh ARCHIVE PACKAGE FIRST-COMMAND
set -eu
archive=$1 package=$2 first=$3
user=sgfresh$$
# Not below $TMPDIR: root's may be closed to the new user.
home=$(mktemp -d /tmp/syncguard-fresh.XXXXXX)
path=/usr/bin:/bin
# What root needs below lies there, and is not in everybody's path.
PATH=$PATH:/usr/sbin:/sbin

fail() {
    echo "error: $*" >&2
    exit 1
}

clean_up() {
    if dpkg -s syncguard >/dev/null 2>&1; then dpkg -P syncguard >/dev/null; fi
    userdel "$user" 2>/dev/null || true
    rm -rf "$home"
}

# Runs a line as the new user, who sees nothing of this environment.
as_user() {
    (cd "$home" && setpriv --reuid "$user" --regid "$user" --clear-groups \
        env -i HOME="$home" USER="$user" PATH="$path" LANG=C.UTF-8 TERM=dumb MANWIDTH=80 sh -c "$1")
}

expect() {
    what=$1 expected=$2 line=$3
    said=$(as_user "$line" 2>&1) || fail "$what: exit $?: $said"
    case $said in
    *"$expected"*) echo "ok: $what" ;;
    *) fail "$what: expected '$expected' in: $said" ;;
    esac
}

# Types `syncguard rel` and Tab at a terminal. A shell that does not complete it says nothing more, and the limit ends it.
write_zsh() {
    cat >"$home/complete.zsh" <<'ZSH'
zmodload zsh/zpty
zpty shell 'zsh -f -i'
zpty -w shell "PS1='> ' fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; print rea''dy"
zpty -r -m shell said '*ready*'
zpty -w -n shell $'syncguard rel\t'
zpty -r -m shell said '*release*' && print -r -- "$said"
zpty -d shell
ZSH
    chmod a+r "$home/complete.zsh"
}

# All that the system knows of us, outside of homes and temporary files.
traces() {
    find /usr /etc /opt /var/lib /var/cache -xdev -name '*syncguard*' 2>/dev/null | sort
}

# check_use WHAT PREFIX ZSH-FOLDER FENCE
check_use() {
    expect "$1: the README's first command" "fence 00000000000000$4" "$first"
    expect "$1: man syncguard" "distributed lock" 'man -P cat syncguard'
    expect "$1: man syncguard-run" "hold-at-least" 'man -P cat syncguard-run'
    expect "$1: completion in bash" "release" "bash --norc -c '. $2/share/bash-completion/completions/syncguard
        COMP_WORDS=(syncguard rel) COMP_CWORD=1; _syncguard syncguard rel syncguard; echo \${COMPREPLY[*]}'"
    expect "$1: completion in zsh" "syncguard release" "timeout 120 zsh -f complete.zsh $3"
}

dpkg -s syncguard >/dev/null 2>&1 && fail "the package syncguard is installed on this machine already"
for program in man zsh bash setpriv useradd; do
    command -v "$program" >/dev/null || fail "the check needs $program (apt-get install man-db zsh)"
done
trap clean_up EXIT
before=$(traces)
useradd --home-dir "$home" --shell /bin/sh "$user"
chown "$user:$user" "$home"
write_zsh
if as_user 'command -v cargo || command -v rustc || command -v syncguard'; then
    fail "the new user has a Rust or a syncguard already"
fi

dpkg -i "$package" >/dev/null
dpkg --verify syncguard || fail "the package does not match its own sums"
files=$(dpkg -L syncguard | while read -r file; do if [ -f "$file" ]; then echo "$file"; fi; done)
check_use "package" /usr /usr/share/zsh/vendor-completions 1
expect "package: an example for systemd" "ExecStart" 'cat /usr/share/doc/syncguard/examples/report.service'
dpkg -P syncguard >/dev/null
for file in $files; do
    if [ -e "$file" ]; then fail "the package left $file behind"; fi
done
[ "$(traces)" = "$before" ] || fail "the package left something behind: $(traces)"
echo "ok: package: removed without a trace"

path=$home/.local/bin:$path
cp "$archive" "$home/syncguard.tar.gz"
chmod a+r "$home/syncguard.tar.gz"
as_user 'mkdir -p .local && tar -xzf syncguard.tar.gz -C .local --strip-components=1'
# The store of before is found again: the next fence follows.
check_use "archive" "$home/.local" "$home/.local/share/zsh/site-functions" 2
as_user 'sh .local/share/doc/syncguard/uninstall.sh && rm -f syncguard.tar.gz complete.zsh'
left=$(cd "$home" && find . -mindepth 1 | grep -vxE '\./\.local(/state(/syncguard(/.*)?)?)?' || true)
[ -z "$left" ] || fail "the archive left something behind: $left"
[ -f "$home/.local/state/syncguard/locks.db" ] || fail "the store is gone"
echo "ok: archive: removed, the store stays"

# An empty container: no files but the binary, not root, process 1.
root=$home/empty
mkdir -p "$root/usr/bin" "$root/tmp"
chmod 1777 "$root/tmp"
tar -xzf "$archive" -C "$root/usr" --strip-components=1 --wildcards '*/bin/syncguard'
said=$(env -i SYNCGUARD_REQUIRE=local unshare --pid --fork "$(command -v chroot)" --userspec=65532:65532 "$root" \
    /usr/bin/syncguard --url sqlite:/tmp/locks.db run first -- /usr/bin/syncguard --version)
case $said in
syncguard*) echo "ok: process 1 in an empty root: $said" ;;
*) fail "process 1 in an empty root: $said" ;;
esac
