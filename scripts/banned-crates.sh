#!/usr/bin/env bash
# Looks for crates that deny.toml bans in what is really built, without cargo-deny. Those that are
# banned only for some (they have wrappers) are left to the tidy check and to cargo-deny.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t banned < <(sed -n 's/^ *{ crate = "\([^"]*\)" },$/\1/p' deny.toml)
if ((${#banned[@]} == 0)); then
  echo "no banned crates in deny.toml: has its form changed?" >&2
  exit 1
fi

# One listing for all of them: asked for a crate that isn't there, cargo fails as for any reason.
used=$(cargo tree --workspace --all-features --edges all --target all --prefix none \
  --format '{p}' | cut -d ' ' -f 1 | sort -u)
found=0
for crate in "${banned[@]}"; do
  if grep -qx -- "$crate" <<<"$used"; then
    echo "$crate is banned by deny.toml and used by:"
    cargo tree --workspace --all-features --target all --invert "$crate" --depth 2
    found=1
  fi
done
echo "${#banned[@]} banned crates looked for among $(wc -l <<<"$used")"
exit "$found"
