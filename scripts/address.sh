#!/usr/bin/env bash
# An address that moves with a volume: two hosts (scripts/hosts.sh) take a volume over from each
# other, and clients come to the address alone, through further servers whose disk is the volume
# there. Moves in order, kills, hosts that vanish, are frozen or cut off from their clients, and
# addresses that move before the volume or late. Each block is checked as a register over the whole
# history and both clients, and no request may fail. It needs root.
#
#   scripts/address.sh
#
# MOVES (20) is the number of moves of each part. PROGRAMS selects other programs than the release
# build. ANNOUNCE=no does not tell the neighbours where the address is.
#
# Disk and journal are volumes of a server on this machine. A former owner is shut out as by shared
# storage: the process that passes its requests on is killed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

# Called by the program `takeovers`: shut-out|let-in DIR HOSTS HOST.
case ${1:-} in
  shut-out)
    kill -KILL -- "-$(cat "$2/gate-$4.pid")"
    exit
    ;;
  let-in)
    host=(ip netns exec "$3-$4")
    answers() { "${host[@]}" socat -u OPEN:/dev/null TCP:127.0.0.1:10900 2>/dev/null; }
    # The former one may still be ending.
    while answers; do sleep 0.02; done
    # It leads the group of the processes that pass requests on, one for each connection.
    setsid "${host[@]}" socat TCP-LISTEN:10900,bind=127.0.0.1,fork,reuseaddr,nodelay \
      "UNIX-CONNECT:$2/store.sock" >/dev/null 2>&1 &
    echo $! >"$2/gate-$4.pid"
    until answers; do
      kill -0 $! || fail "socat does not start"
      sleep 0.02
    done
    exit
    ;;
esac

programs=${PROGRAMS:-$(target_dir)/release}
forebay=$programs/forebay
for program in forebay takeovers; do
  [[ -x $programs/$program ]] || fail "$programs/$program is not built: run cargo build --release" \
    "--workspace --bins first"
done
((EUID == 0)) || fail "network namespaces need root"
need socat=socat arping=iputils-arping

dir=$(mktemp -d -p "${FOLDER:-$(target_dir)}" address.XXXXXX)
hosts=forebay$((BASHPID % 100000))
clean() {
  local host
  for host in 0 1; do
    scripts/address.sh shut-out "$dir" "$hosts" "$host" 2>/dev/null || true
  done
  # Those that an interrupted `takeovers` has left, and the store.
  pkill -KILL -f -- "--state $dir/" || true
  scripts/hosts.sh remove "$hosts"
  rm -rf "$dir"
}
trap clean EXIT

# moves NAME OPTION...: part of the test, on an empty disk and an empty journal.
moves() {
  local name=$1 host image store volumes=()
  shift
  say "$name"
  mkdir "$dir/$name"
  for image in disk journal; do
    truncate -s 64M "$dir/$name/$image.img"
    volumes+=(--volume "$image=$dir/$name/$image.img,mode=write-through")
  done
  "$forebay" serve --keeper no --state "$dir/$name/store" --nbd "unix:$dir/store.sock" \
    --memory 64MiB "${volumes[@]}" >"$dir/$name/store.log" 2>&1 &
  store=$!
  wait_for_socket "$dir/store.sock" "$store" || fail "the server of the stores does not start"
  for host in 0 1; do
    scripts/address.sh let-in "$dir" "$hosts" "$host"
    scripts/hosts.sh drop "$hosts" "$host"
  done
  "$programs/takeovers" --programs "$programs" --folder "$dir/$name" --takeovers "${MOVES:-20}" \
    --wrapper "ip netns exec $hosts-{host} unshare --pid --fork --mount-proc --kill-child" \
    --cut "scripts/address.sh shut-out $dir $hosts {host}" \
    --heal "scripts/address.sh let-in $dir $hosts {host}" \
    --address "nbd://$moving/v?keeps-writes=yes" --listen tcp:0.0.0.0:10809 \
    --mover "scripts/hosts.sh {verb} $hosts {host}" \
    --one "$(owned disk),mode=write-back,protection=journal,journal=$(owned journal)" \
    --fetch "$forebay stop --state $dir/$name/store >&2 && cat $dir/$name/disk.img" "$@" \
    >"$dir/$name/log" 2>&1 || {
    tail -n 15 "$dir/$name/log"
    tail -n 5 "$dir/$name"/*/log
    fail "$name"
  }
  for host in 0 1; do scripts/address.sh shut-out "$dir" "$hosts" "$host"; done
  sed -n "/ acknowledged, /,\$p" "$dir/$name/log"
}

# owned IMAGE: a store that remembers its owners.
owned() {
  printf 'owned(record=%s):nbd://127.0.0.1:10900/%s?reconnect-delay=5s' \
    "$dir/$name/$1.owners" "$1"
}

scripts/hosts.sh make "$hosts" >/dev/null
moving=$(scripts/hosts.sh moving "$hosts")
moves planned --faults move
moves faults
moves late --late-ms 3000
say "an address that moves with a volume: passed"
