#!/bin/sh
# Makes a base image from Debian's packages, where no registry can be reached; the same bytes from the same packages.
# base.sh [SUITE [PACKAGE ...]]   e.g. base.sh trixie python3-torch   -> image vpoc-base:trixie-python3-torch
# Packages are those of images/bases/NAME.txt, by hash, kept in .cache/debs; without such a file, today's (LOCK=1 writes
# it). Needs mmdebstrap, a Docker engine, and for SUITE the keys of Debian's archive. MIRROR names another archive;
# TAR=file.tar keeps the archive the image is imported from.
set -eu
case ${1:-} in -*) sed -n '2,6s/^# //p' "$0"; exit 2 ;; esac
suite=${1:-bookworm}
[ $# -gt 0 ] && shift
name=$suite$(printf -- '-%s' "$@" | sed 's/^-$//')
case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
here=$(cd "$here" && pwd)
lock=$here/bases/$name.txt
debs=${DEBS:-$here/../.cache/debs}
mirror=${MIRROR:-http://deb.debian.org/debian}
command -v mmdebstrap >/dev/null || { echo "base.sh: mmdebstrap is missing (Debian: apt install mmdebstrap)" >&2; exit 2; }
docker info >/dev/null 2>&1 || { echo "base.sh: no Docker engine answers" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
umask 022
packages=$(printf '%s,' python3 ca-certificates libgomp1 "$@")

# bootstrap TAR SOURCE [OPTION ...]: without documentation, translations and package lists' own caches, which differ from
# day to day, or are never read; with the sources that any mirror has under that name, and nothing of this host. An
# engine mounts its own over three files: where one is missing it leaves a trace in each layer.
bootstrap() {
  into=$1 from=$2
  shift 2
  env LC_ALL=C.UTF-8 TZ=UTC SOURCE_DATE_EPOCH=1700000000 mmdebstrap --quiet --variant=apt \
    --include="${packages%,}" --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' "$@" \
    --customize-hook="echo 'deb http://deb.debian.org/debian $suite main' >\"\$1/etc/apt/sources.list\"" \
    --customize-hook='cd "$1/etc" && rm -f hosts hostname resolv.conf && touch hosts hostname resolv.conf' \
    "$suite" "$into" "$from" >&2
}

# pool DEB: where the archive has it.
pool() {
  origin=$(dpkg-deb -f "$1" Source | cut -d' ' -f1)
  origin=${origin:-$(dpkg-deb -f "$1" Package)}
  case $origin in lib*) start=$(echo "$origin" | cut -c1-4) ;; *) start=$(echo "$origin" | cut -c1) ;; esac
  echo "pool/main/$start/$origin/$(basename "$1" | sed 's/_[0-9]*%3a/_/')"
}

# fetch PATH FILE [HASH]: from the mirror.
fetch() {
  /usr/lib/apt/apt-helper -q -o APT::Sandbox::User=root download-file "$mirror/$1" "$2" ${3:+"SHA256:$3"} >"$work/said.txt" 2>&1
}

[ -f "$lock" ] || fetch "dists/$suite/InRelease" "$work/InRelease" || {
  why=$(sed -n 's/^E: Failed to fetch [^ ]* *//p' "$work/said.txt")
  echo "base.sh: $mirror gives no suite $suite ($why); Debian's are bookworm, trixie, forky and sid (make base SUITE=trixie)" >&2
  exit 2
}
tar=${TAR:-$work/base.tar}
if [ -n "${LOCK:-}" ]; then
  mkdir -p "$work/debs" "$debs"
  bootstrap "$work/first.tar" "$mirror" --skip=essential/unlink --skip=cleanup/apt/cache \
    --customize-hook="sync-out /var/cache/apt/archives $work/debs"
  for deb in "$work"/debs/*.deb; do
    path=$(pool "$deb")
    mv "$deb" "$debs/$(basename "$path")"
    echo "$(sha256sum <"$debs/$(basename "$path")" | cut -d' ' -f1) $path"
  done | LC_ALL=C sort -k2 >"$work/lock.txt"
  mkdir -p "$here/bases"
  cp "$work/lock.txt" "$lock"
fi
if [ -f "$lock" ]; then
  mkdir -p "$work/repo" "$debs"
  while read -r hash path; do
    deb=$debs/${path##*/}
    if [ "$(sha256sum 2>/dev/null <"$deb" | cut -d' ' -f1)" != "$hash" ]; then
      fetch "$path" "$deb" "$hash" || {
        echo "base.sh: $mirror has no ${path##*/} of the hash in $lock; MIRROR=http://snapshot.debian.org/archive/debian/DATE does, or LOCK=1 takes today's" >&2
        exit 2
      }
    fi
    cp "$deb" "$work/repo/"
    { dpkg-deb -f "$deb"; printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "${path##*/}" "$(wc -c <"$deb")" "$hash"; } >>"$work/repo/Packages"
  done <"$lock"
  bootstrap "$tar" "deb [trusted=yes] copy:$work/repo ./"
else
  bootstrap "$tar" "$mirror"
fi
docker import --change 'CMD ["/bin/sh"]' --change 'ENV LANG=C.UTF-8' "$tar" "vpoc-base:$name" >/dev/null
echo "vpoc-base:$name"
