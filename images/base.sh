#!/bin/sh
# Makes a base image from Debian's packages, where no registry can be reached; the same bytes from the same archive.
# base.sh [SUITE [PACKAGE ...]]   e.g. base.sh trixie python3-torch   -> image vpoc-base:trixie-python3-torch
# Needs mmdebstrap, a Docker engine, and for SUITE the keys of Debian's archive. MIRROR names another archive;
# TAR=file.tar keeps the archive the image is imported from.
set -eu
case ${1:-} in -*) sed -n '2,5s/^# //p' "$0"; exit 2 ;; esac
suite=${1:-bookworm}
[ $# -gt 0 ] && shift
name=vpoc-base:$suite$(printf -- '-%s' "$@" | sed 's/^-$//')
command -v mmdebstrap >/dev/null || { echo "base.sh: mmdebstrap is missing (Debian: apt install mmdebstrap)" >&2; exit 2; }
docker info >/dev/null 2>&1 || { echo "base.sh: no Docker engine answers" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
tar=${TAR:-$work/base.tar}
packages=$(printf '%s,' python3 ca-certificates libgomp1 "$@")
# Without documentation, translations and package lists' own caches: they differ from day to day, or are never read.
SOURCE_DATE_EPOCH=1700000000 mmdebstrap --quiet --variant=apt --include="${packages%,}" \
  --aptopt='APT::Install-Recommends "false"' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  "$suite" "$tar" "${MIRROR:-http://deb.debian.org/debian}" >&2
docker import --change 'CMD ["/bin/sh"]' --change 'ENV LANG=C.UTF-8' "$tar" "$name" >/dev/null
echo "$name"
