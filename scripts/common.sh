# Functions shared by the scripts of this repository: progress messages and installation of tools.
# Source it from bash with the repository as the current directory.
# shellcheck shell=bash

say() { printf '== %s\n' "$*"; }
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# install PACKAGE...: installs packages on Debian and its derivatives.
install() {
  local as=()
  if ! command -v apt-get >/dev/null; then
    fail "missing: $*. This is no Debian or Ubuntu: install them by hand and start again."
  fi
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "missing: $*. Install them as root and start again."
    as=(sudo)
  fi
  say "installing $*"
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "$@" >/dev/null && return
  # The package lists of a fresh machine are empty or old.
  "${as[@]}" apt-get update -qq
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "$@" >/dev/null
}

# need COMMAND=PACKAGE...: installs the packages whose commands are missing.
need() {
  local pair missing=()
  for pair in "$@"; do
    command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  if ((${#missing[@]})); then install "${missing[@]}"; fi
}

# need_rust: installs the compiler that rust-toolchain.toml names.
need_rust() {
  local channel
  channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
  [[ ":$PATH:" == *":$HOME/.cargo/bin:"* ]] || PATH="$HOME/.cargo/bin:$PATH"
  if ! command -v cargo >/dev/null; then
    install rustup || fail "this distribution has no package rustup: install rustup by hand, or" \
      "Rust $channel with rustfmt and clippy, and start again."
  fi
  if command -v rustup >/dev/null; then
    if ! rustup run "$channel" rustc --version >/dev/null 2>&1; then
      say "installing Rust $channel"
      rustup toolchain install "$channel" --profile minimal --component rustfmt --component clippy
    fi
  elif [[ $(rustc --version) != "rustc $channel "* ]]; then
    say "note: found $(rustc --version), but this repository requires $channel"
  fi
}

# target_dir: prints cargo's target directory.
target_dir() { printf '%s\n' "${CARGO_TARGET_DIR:-$PWD/target}"; }

# wait_for_socket PATH PID: waits until a process listens at PATH; fails if PID exits.
wait_for_socket() {
  local i
  for ((i = 0; i < 200; i++)); do
    [[ -S $1 ]] && return 0
    kill -0 "$2" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}
