#!/usr/bin/env bash
# Opens the dashboard of a server under load in a headless Chromium, and checks that its figures
# agree with those of the API, that it has no errors and loads nothing from elsewhere, and that it
# can be used by keyboard and on a phone.
#
#   scripts/dashboard.sh [PICTURES]
#
# PICTURES is a directory for pictures of it: light, dark, phone and others; by default
# target/dashboard. DASHBOARD_SECONDS is the time under load before the first one (40). BROWSER is
# another program than Chromium, which takes its options; PROGRAMS another directory of built
# programs than target/release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

programs=${PROGRAMS:-$(target_dir)/release}
[[ -x $programs/dashboard ]] || fail "$programs/dashboard is not built: run cargo build --release" \
  "--workspace --bins first"
need fio=fio
if [[ -z ${BROWSER:-} ]] && ! command -v chromium >/dev/null; then
  say "there is no Chromium; it takes about 300 MB"
  # The fonts are for the pictures.
  install chromium fonts-dejavu-core
fi
"$programs/dashboard" --programs "$programs" --browser "${BROWSER:-chromium}" \
  --seconds "${DASHBOARD_SECONDS:-40}" --pictures "${1:-$(target_dir)/dashboard}"
