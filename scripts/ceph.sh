#!/usr/bin/env bash
# Images of a Ceph cluster as disks and journals: the tests of the backend, and the built program
# against a model and fio, through stops, kills of the server, absent OSDs and monitors, a full
# cluster, a lock that another client breaks, and takeovers by another server or by two at once. The
# images are compared from outside, with `rbd export` and fio's own client.
#
#   scripts/ceph.sh
#
# The cluster is made by scripts/ceph-cluster.sh in the build directory. AWAY (20) is the number of
# seconds without any OSD, TAKEOVERS (20) that of takeovers by command, and WATCHED (4) that of
# takeovers by hosts that watch the journal. PROGRAMS selects other programs than
# the release build. As root, the hosts are also cut off from the cluster (scripts/hosts.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

programs=${PROGRAMS:-$(target_dir)/release}
forebay=$programs/forebay
for program in forebay model-client takeovers; do
  [[ -x $programs/$program ]] || fail "$programs/$program is not built: run cargo build --release" \
    "--workspace --bins first"
done
need ceph-mon=ceph-mon ceph-osd=ceph-osd rbd=ceph-common fio=fio jq=jq
/usr/bin/python3 -c 'import rbd' 2>/dev/null || install python3-rbd

dir=$(mktemp -d -p "${FOLDER:-$(target_dir)}" ceph.XXXXXX)
conf=$dir/cluster/ceph.conf
keeper=no
uri="nbd+unix:///v?socket=$dir/nbd.sock"
server=
# The servers of `races`.
racers=()
load=
# The name of the two hosts, if they can be made.
hosts=
clean() {
  [[ -z $load ]] || kill "$load" 2>/dev/null || true
  # shellcheck disable=SC2086
  kill -KILL $server "${racers[@]}" 2>/dev/null || true
  scripts/ceph-cluster.sh stop "$dir/cluster"
  [[ -z $hosts ]] || scripts/hosts.sh remove "$hosts"
  rm -rf "$dir"
}
trap clean EXIT

gave_up() {
  tail -n 25 "$dir/log" | cut -c 1-300
  head -n 15 "$dir/fio.log" 2>/dev/null || true
  fail "$*"
}

# with_rbd ARGUMENT...: `rbd` of the cluster.
with_rbd() { rbd -c "$conf" --no-progress "$@"; }
daemon() { scripts/ceph-cluster.sh "$1" "$dir/cluster" "$2"; }

# fresh_images: an empty disk and an empty journal, and a state directory without records.
fresh_images() {
  local image
  rm -rf "$dir/state"
  for image in disk journal; do
    with_rbd rm "$image" >/dev/null 2>&1 || true
    with_rbd create "$image" --size 256M
  done
}

# serve SETTINGS [OPTION...]: starts the server with the volume `v` on the disk.
serve() {
  rm -f "$dir/nbd.sock"
  "$forebay" serve --keeper "$keeper" --state "$dir/state" --nbd "unix:$dir/nbd.sock" \
    --memory 96MiB --volume "v=rbd:rbd/disk@$conf,$1" "${@:2}" >>"$dir/log" 2>&1 &
  server=$!
  wait_for_socket "$dir/nbd.sock" "$server" || gave_up "the server does not start"
}
write_back="mode=write-back,protection=journal,journal=rbd:rbd/journal@$conf"

stop() {
  kill "$server"
  wait_until "the server has stopped" eval "! kill -0 $server"
  wait "$server" || gave_up "the server has failed to stop"
  server=
}
status() { "$forebay" status --json --state "$dir/state"; }
is_stalled() { status | jq -e '.volumes[0].state == "stalled"'; }
is_taken_over() { status | jq -e '.missing[0].taken_over'; }

# wait_until TEXT COMMAND...: until the command succeeds, for at most 60 s.
wait_until() {
  for _ in {1..600}; do
    if "${@:2}" >/dev/null 2>&1; then return 0; fi
    sleep 0.1
  done
  gave_up "gave up waiting until $1"
}

# writes OPTION...: fio's job, which writes each block of the first MiBs once, with its checksum.
mib=64
writes() {
  fio --name=load --rw=randwrite --bs=4k --iodepth=16 --size="${mib}M" --randseed=7 \
    --allrandrepeat=1 --verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@"
}
through_nbd=(--ioengine=nbd "--uri=$uri")
# From outside, after the server has stopped.
compare() {
  CEPH_CONF=$conf writes --ioengine=rbd --clientname=admin --pool=rbd --rbdname=disk \
    --verify_only >"$dir/fio.log" 2>&1 || gave_up "the image is not what fio has written"
}

begin_load() {
  writes "${through_nbd[@]}" --rate_iops="$1" >"$dir/fio.log" 2>&1 &
  load=$!
}
end_load() {
  wait "$load" || gave_up "fio has failed: $*"
  load=
}

# model MODE END: one run of the model client.
model() {
  # A trim of less than 64 KiB leaves what the image had before, which may be older than the cache.
  local options=(--stops 2) rbd="rbd -c $conf --no-progress"
  [[ $2 != kill ]] || options=(--kills 3)
  say "model, $1, $2"
  fresh_images
  rm -rf "$dir/model"
  truncate -s 64M "$dir/outside"
  "$programs/model-client" --programs "$programs" --folder "$dir/model" \
    --backing "rbd:rbd/disk@$conf" --outside "$dir/outside" \
    --store "$rbd rm disk && $rbd import $dir/outside disk" \
    --fetch "$rbd export disk - >$dir/outside" \
    --mode "$1" --journal "rbd:rbd/journal@$conf" --operations 5000 --trim-leaves-anything \
    "${options[@]}"
}

# faults CLASS SETTINGS: OSDs and the monitor are killed and come back under load, for a volume of
# this durability class.
faults() {
  local osd
  say "faults under load, class $1"
  fresh_images
  rm -f "$dir/local.img"
  truncate -s 256M "$dir/local.img"
  serve "$2"
  status | jq -e --arg class "$1" '.volumes[0].class == $class' >/dev/null ||
    gave_up "the class is not $1"
  begin_load $((16384 / (14 + 2)))
  sleep 2; daemon kill osd.0
  sleep 3; daemon run osd.0
  sleep 2; daemon kill mon
  sleep 3; daemon run mon
  sleep 1
  for osd in osd.0 osd.1; do daemon kill "$osd"; done
  sleep "${AWAY:-20}"
  for osd in osd.0 osd.1; do daemon run "$osd"; done
  end_load "through killed OSDs and monitors"
  stop
  compare
}

# limits: a time limit of I/O in the configuration does not apply, see connection.rs of the backend.
limits() {
  local osd whole=$conf mib=4
  say "a time limit of I/O"
  fresh_images
  sed 's/^\[mon\]/rados_osd_op_timeout = 2\n&/' "$conf" >"$dir/limited.conf"
  conf=$dir/limited.conf serve "mode=write-back,protection=none,accept-loss=yes"
  conf=$whole
  for osd in osd.0 osd.1; do daemon kill "$osd"; done
  # In memory, less than what a shard takes: a further write would wait for the disk.
  writes "${through_nbd[@]}" >"$dir/fio.log" 2>&1 || gave_up "writes to memory fail"
  wait_until "the disk does not answer" is_stalled
  status | jq -e '.volumes[0].dirty_bytes > 0' >/dev/null || gave_up "what was not written is clean"
  for osd in osd.0 osd.1; do daemon run "$osd"; done
  stop
  compare
  ! grep -q 'os error 110' "$dir/log" || gave_up "I/O has expired"
}

set_ratios() {
  ceph -c "$conf" osd set-nearfull-ratio "$1" >/dev/null 2>&1
  ceph -c "$conf" osd set-backfillfull-ratio "$2" >/dev/null 2>&1
  ceph -c "$conf" osd set-full-ratio "$3" >/dev/null 2>&1
}

# full: writes to a full cluster wait, and are carried out once there is space.
full() {
  say "a full cluster"
  fresh_images
  serve "mode=write-through"
  begin_load 800
  # An OSD takes the largest of the three.
  set_ratios 0.0001 0.0002 0.0003
  wait_until "the disk does not answer" is_stalled
  set_ratios 0.85 0.90 0.95
  end_load "on a full cluster"
  stop
  compare
}

# take_over IMAGE: breaks the lock of the image, as another server would, and keeps it until its
# standard input ends.
take_over() {
  /usr/bin/python3 - "$conf" "$1" <<'PYTHON'
import rados, rbd, sys
cluster = rados.Rados(conffile=sys.argv[1], rados_id="vm", conf={"rbd_cache": "false"})
cluster.connect()
with cluster.open_ioctx("rbd") as pool, rbd.Image(pool, sys.argv[2]) as image:
    for owner in list(image.lock_get_owners()):
        image.lock_break(rbd.RBD_LOCK_MODE_EXCLUSIVE, owner["owner"])
    image.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
cluster.shutdown()
PYTHON
}

# fence: a server whose lock was broken writes nothing any more, and what it has acknowledged is in
# the journal.
fence() {
  local before after
  say "a lock that another client breaks"
  fresh_images
  serve "$write_back"
  writes "${through_nbd[@]}" >"$dir/fio.log" 2>&1 || gave_up "fio has failed"
  take_over disk
  before=$(with_rbd export disk - | sha256sum)
  ! writes "${through_nbd[@]}" --offset=64M >"$dir/fio.log" 2>&1 ||
    gave_up "writes succeed without the lock"
  wait_until "the volume has ended" is_taken_over
  after=$(with_rbd export disk - | sha256sum)
  [[ $before == "$after" ]] || gave_up "the image has changed after its lock was broken"
  stop
  serve "$write_back"
  writes "${through_nbd[@]}" --verify_only >"$dir/fio.log" 2>&1 || gave_up "a write is lost"
  stop
  compare
}

# successors: the next server on the pool breaks the locks that the former one has left.
successors() {
  local keeper=yes
  say "an upgrade, and a kill, under a keeper"
  fresh_images
  serve "$write_back"
  begin_load 2000
  sleep 2
  "$forebay" upgrade --state "$dir/state" >/dev/null || gave_up "the upgrade has failed"
  end_load "through an upgrade"
  pkill -KILL -P "$server"
  wait_until "the next server answers" status
  writes "${through_nbd[@]}" --verify_only >"$dir/fio.log" 2>&1 || gave_up "a write is lost"
  stop
  compare
}

# refusals: what the operator reads.
refusals() {
  local text
  say "refusals"
  fresh_images
  serve "$write_back"
  text=$("$forebay" serve --keeper no --state "$dir/other" --nbd "unix:$dir/other.sock" \
    --memory 64MiB --volume "v=rbd:rbd/disk@$conf" 2>&1 && true) || true
  grep -q "is locked by the client at .* (process $server of Forebay on " <<<"$text" ||
    gave_up "the owner of the lock is not named: $text"
  text=$("$forebay" volume add --state "$dir/state" "w=rbd:rbd/disk@$conf" 2>&1 && true) || true
  grep -q "in use here" <<<"$text" || gave_up "one image is served twice: $text"
  text=$("$forebay" volume add --state "$dir/state" "w=rbd:rbd/disk@$conf?user=weak" 2>&1) || true
  grep -q "ceph auth caps client.weak" <<<"$text" || gave_up "the rights are not named: $text"
  with_rbd resize disk --size 512M
  "$forebay" volume resize --state "$dir/state" v >/dev/null || gave_up "it does not grow"
  status | jq -e '.volumes[0].size_bytes == 512 * 1048576' >/dev/null || gave_up "its size is old"
  stop
}

# takeovers COUNT [OPTION...]: two servers, with processes that the other one does not see, as on
# two hosts.
takeovers() {
  local count=$1 network=()
  local wrapper="unshare --pid --fork --mount-proc --kill-child"
  say "$count takeovers while clients write${2:+, with ${*:2}}"
  rm -rf "$dir/takeovers"
  if [[ -n $hosts ]]; then
    wrapper="ip netns exec $hosts-{host} $wrapper"
    network=(--cut "scripts/hosts.sh cut $hosts {host}")
    network+=(--heal "scripts/hosts.sh heal $hosts {host}")
  else
    say "skipped: takeovers from hosts that are cut off: network namespaces need root"
  fi
  fresh_images
  "$programs/takeovers" --programs "$programs" --folder "$dir/takeovers" --takeovers "$count" \
    --wrapper "$wrapper" "${network[@]}" "${@:2}" \
    --one "rbd:rbd/disk@$conf,$write_back" --fetch "rbd -c $conf --no-progress export disk -" \
    >"$dir/takeovers.log" 2>&1 || gave_up "$(tail -n 3 "$dir/takeovers.log")"
  # What it says once all are over.
  sed -n '/acknowledged, none lost/,$p' "$dir/takeovers.log"
}

# races: two hosts take the volume over at once, and then one of them does, which serves what was
# written before.
races() {
  local host round previous=0 takers racer
  say "takeovers by two hosts at once"
  fresh_images
  for host in one two; do
    "$forebay" serve --keeper no --state "$dir/$host" --nbd "unix:$dir/$host.sock" --memory 96MiB \
      --volume "v=rbd:rbd/disk@$conf,$write_back,standby=yes" >>"$dir/log" 2>&1 &
    racers+=($!)
    wait_for_socket "$dir/$host.sock" $! || gave_up "host $host does not start"
  done
  for round in {1..10}; do
    takers=()
    for host in one two; do
      "$forebay" takeover v --state "$dir/$host" >>"$dir/log" 2>&1 &
      takers+=($!)
    done
    # One of them may lose.
    wait "${takers[@]}" || true
    host=one
    ((round / 2 % 2)) || host=two
    "$forebay" takeover v --state "$dir/$host" >>"$dir/log" 2>&1 ||
      gave_up "host $host cannot take over after both did"
    pattern "$host" "$previous" --rw=read --verify_only=0 ||
      gave_up "host $host has other data than was written"
    pattern "$host" "$round" --rw=write --do_verify=0 || gave_up "host $host takes no writes"
    previous=$round
  done
  kill "${racers[@]}"
  for racer in "${racers[@]}"; do wait "$racer" || gave_up "a server has failed to stop"; done
  racers=()
}

# pattern HOST PATTERN OPTION...: fio's job on the first MiBs, through a server of `races`.
pattern() {
  fio --name=pattern --ioengine=nbd "--uri=nbd+unix:///v?socket=$dir/$1.sock" --bs=64k --size=8m \
    --iodepth=4 --verify=pattern --verify_pattern="$2" --verify_state_save=0 "${@:3}" \
    >"$dir/fio.log" 2>&1
}

# long_fence: how long a former owner is shut out.
long_fence() {
  local expiry seconds
  # A former owner may sleep for longer than the cluster's hour.
  expiry=$(ceph -c "$conf" osd blocklist ls 2>/dev/null | awk '{print $2}' | sort | tail -n 1)
  seconds=$(($(date -d "${expiry%+*}" +%s) - $(date +%s)))
  ((seconds > 300 * 24 * 3600)) || gave_up "a former owner is shut out until $expiry only"
}

say "a cluster"
mkdir "$dir/cluster"
hosts=forebay$((BASHPID % 100000))
if address=$(scripts/hosts.sh make "$hosts" 2>/dev/null); then
  CEPH_ADDRESS=$address scripts/ceph-cluster.sh start "$dir/cluster" 2
else
  scripts/hosts.sh remove "$hosts" 2>/dev/null || true
  hosts=
  scripts/ceph-cluster.sh start "$dir/cluster" 2
fi
say "the backend"
FOREBAY_CEPH=$conf cargo test --quiet -p forebay-backend --lib -- --ignored tool_ceph_
refusals
model write-through stop
model write-through kill
model journal stop
model journal kill
model journal-flush kill
successors
faults through mode=write-through
faults shared "$write_back"
faults local "mode=write-back,protection=journal,journal=$dir/local.img,ordered=yes"
limits
full
fence
races
takeovers "${TAKEOVERS:-20}"
long_fence
takeovers "${WATCHED:-4}" --watch 3
say "images of Ceph: passed"
