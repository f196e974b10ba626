#!/usr/bin/env bash
# Finds crates banned by deny.toml in the actual dependency graph, without cargo-deny. Crates that
# are banned only for some users (those with wrappers) are left to the tidy check and to
# cargo-deny.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t banned < <(sed -n 's/^ *{ crate = "\([^"]*\)" },$/\1/p' deny.toml)
if ((${#banned[@]} == 0)); then
  echo "no banned crates in deny.toml: has its form changed?" >&2
  exit 1
fi

# One listing for all: for a crate outside the graph, cargo fails with a generic error.
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
echo "searched for ${#banned[@]} banned crates among $(wc -l <<<"$used")"
exit "$found"
