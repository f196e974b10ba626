#!/usr/bin/env bash
# Volumes on a real S3 store: the suite of backends; fio through the built program with a restart;
# ext4 under load, whose server is killed and whose volume is opened elsewhere; an absent store; and
# a former owner that wakes up. Needs root, for a loop device and a mount.
#
#   scripts/s3.sh
#
# The store is Ceph's gateway on a cluster that scripts/ceph-cluster.sh makes in the build
# directory, or that of ENDPOINT (http://HOST:PORT), with the keys AWS_ACCESS_KEY_ID and
# AWS_SECRET_ACCESS_KEY.
# AWAY (15) is the number of seconds without the gateway, KILLS (3) the number of kills under ext4.
# PROGRAMS selects other programs than the release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

((EUID == 0)) || fail "a loop device and a mount need root"
programs=${PROGRAMS:-$(target_dir)/release}
forebay=$programs/forebay
[[ -x $forebay ]] || fail "$forebay is not built: run cargo build --release --workspace --bins" \
  "first"
need curl=curl fio=fio jq=jq nbdfuse=libnbd-bin fusermount3=fuse3 mkfs.ext4=e2fsprogs

dir=$(mktemp -d -p "${FOLDER:-$(target_dir)}" s3.XXXXXX)
server=
load=()
has_gateway=no
clean() {
  for pid in "${load[@]}" $server; do kill -KILL "$pid" 2>/dev/null || true; done
  detach
  [[ $has_gateway == no ]] || scripts/ceph-cluster.sh stop "$dir/cluster"
  rm -rf "$dir"
}
trap clean EXIT

gave_up() {
  tail -n 25 "$dir/log" | cut -c 1-300
  head -n 15 "$dir/fio.log" 2>/dev/null || true
  fail "$*"
}

# wait_until TEXT COMMAND...: until the command succeeds, for at most 60 s.
wait_until() {
  for _ in {1..600}; do
    if "${@:2}" >/dev/null 2>&1; then return 0; fi
    sleep 0.1
  done
  gave_up "gave up waiting until $1"
}

# begin_store: a store with an empty bucket.
begin_store() {
  if [[ -z ${ENDPOINT:-} ]]; then
    need ceph-mon=ceph-mon ceph-osd=ceph-osd radosgw=radosgw
    /usr/bin/python3 -c 'import rbd' 2>/dev/null || install python3-rbd
    has_gateway=yes
    scripts/ceph-cluster.sh start "$dir/cluster"
    ENDPOINT=$(scripts/ceph-cluster.sh gateway "$dir/cluster")
    export AWS_ACCESS_KEY_ID=access AWS_SECRET_ACCESS_KEY=secret
  fi
  say "store at $ENDPOINT"
  bucket=forebay-$(tr -d - </proc/sys/kernel/random/uuid)
  # The curl of Debian 12 does not add this header by itself.
  curl --silent --show-error --fail --aws-sigv4 aws:amz:us-east-1:s3 \
    --header 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \
    --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" -X PUT "$ENDPOINT/$bucket"
}

# serve HOST SETTINGS: starts the server of a host, which has its own state directory.
serve() {
  host=$dir/$1
  mkdir -p "$host"
  rm -f "$host/nbd.sock"
  "$forebay" serve --keeper no --state "$host/state" --nbd "unix:$host/nbd.sock" \
    --memory 96MiB --volume "v=$backing,$2" >>"$dir/log" 2>&1 &
  server=$!
  wait_for_socket "$host/nbd.sock" "$server" || gave_up "the server does not start"
}
stop() {
  kill "$server"
  wait "$server" || gave_up "the server has failed to stop"
  server=
}
status() { "$forebay" status --json --state "$host/state"; }
is_stalled() { status | jq -e '.volumes[0].state == "stalled"'; }
is_taken_over() { status | jq -e '.missing[0].taken_over'; }
is_owned() { status | jq -e '.missing[0].reason | contains("in use by process")'; }

# writes OPTION...: fio's job, which writes each block once, with its checksum.
writes() {
  fio --name=load --rw=randwrite --bs=4k --iodepth=16 --size=64M --randseed=7 --allrandrepeat=1 \
    --verify=crc32c --verify_fatal=1 --verify_state_save=0 --ioengine=nbd \
    --uri="nbd+unix:///v?socket=$host/nbd.sock" "$@" >"$dir/fio.log" 2>&1
}

attach() {
  mkdir -p "$dir/fuse" "$dir/mount"
  nbdfuse "$dir/fuse/disk" "nbd+unix:///v?socket=$host/nbd.sock" >/dev/null 2>&1 &
  load+=($!)
  wait_until "the disk is there" test -e "$dir/fuse/disk"
  loop=$(losetup --find --show "$dir/fuse/disk")
}
detach() {
  umount "$dir/mount" 2>/dev/null || umount -l "$dir/mount" 2>/dev/null || true
  [[ -z ${loop:-} ]] || losetup -d "$loop" 2>/dev/null || true
  loop=
  fusermount3 -uz "$dir/fuse/disk" 2>/dev/null || true
  fusermount3 -uz "$dir/fuse" 2>/dev/null || true
}

# write_files: files whose names and checksums are listed once they are synced.
write_files() {
  /usr/bin/python3 - "$dir/mount/files" "$dir/synced" <<'PYTHON'
import hashlib, itertools, os, random, sys
folder, listed = sys.argv[1], open(sys.argv[2], "a")
os.makedirs(folder, exist_ok=True)
directory = os.open(folder, os.O_RDONLY)
start = len(os.listdir(folder))
for number in itertools.count(start):
    data = random.randbytes(random.randrange(1, 200_000))
    name = f"{number:08}"
    file = os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    os.write(file, data)
    os.fsync(file)
    os.close(file)
    os.fsync(directory)
    print(name, hashlib.sha256(data).hexdigest(), file=listed, flush=True)
PYTHON
}

check_files() {
  /usr/bin/python3 - "$dir/mount/files" "$dir/synced" <<'PYTHON'
import hashlib, sys
count = 0
for line in open(sys.argv[2]):
    name, digest = line.split()
    found = hashlib.sha256(open(f"{sys.argv[1]}/{name}", "rb").read()).hexdigest()
    if found != digest:
        sys.exit(f"{name} is not what was synced")
    count += 1
print(f"{count} synced files are there")
PYTHON
}

begin_store
say "the suite of backends"
S3_TEST_BACKING="s3://$bucket/suite?endpoint=$ENDPOINT" cargo test -q -p forebay-backend-s3 \
  --test real -- --ignored --nocapture --test-threads 1

backing="s3://$bucket/fio?endpoint=$ENDPOINT&size=256MiB"
say "fio, with a restart"
serve one mode=write-through
writes || gave_up "fio has failed"
stop
serve one mode=write-through
writes --verify_only || gave_up "the volume is not what fio has written"

if [[ $has_gateway == yes ]]; then
  say "no gateway for ${AWAY:=15} s"
  # Slowly, so that it lasts until the gateway is gone.
  writes --end_fsync=1 --randseed=8 --rate_iops=600 &
  load+=($!)
  writing=$!
  sleep 1
  scripts/ceph-cluster.sh kill "$dir/cluster" gateway
  wait_until "the volume is stalled" is_stalled
  sleep "$AWAY"
  scripts/ceph-cluster.sh gateway "$dir/cluster" >/dev/null
  wait "$writing" || gave_up "fio has seen an error"
  writes --verify_only --randseed=8 || gave_up "the volume is not what fio has written"
fi
stop

backing="s3://$bucket/ext4?endpoint=$ENDPOINT&size=1GiB&keep=5s"
serve host0 mode=write-through
attach
mkfs.ext4 -q "$loop"
detach
stop
for ((round = 1; round <= ${KILLS:=3}; round++)); do
  say "ext4 under load, killed: $round of $KILLS"
  serve "host$((round - 1))" mode=write-through
  attach
  mount "$loop" "$dir/mount"
  write_files 2>/dev/null &
  load+=($!)
  fio --name=stress --directory="$dir/mount" --rw=randrw --bs=4k-64k --size=64M --fsync=32 \
    --time_based --runtime=600 >/dev/null 2>&1 &
  load+=($!)
  sleep 15
  kill -KILL "$server"
  wait "$server" || true
  sleep 1
  for pid in "${load[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  load=()
  detach
  serve "host$round" mode=write-through
  attach
  e2fsck -fp "$loop" >"$dir/fsck" 2>&1 || (($? == 1)) || gave_up "$(cat "$dir/fsck")"
  e2fsck -fn "$loop" >"$dir/fsck" 2>&1 || gave_up "$(cat "$dir/fsck")"
  mount "$loop" "$dir/mount"
  check_files || gave_up "a synced file is lost"
  detach
  stop
done

say "a former owner that wakes up"
backing="s3://$bucket/fence?endpoint=$ENDPOINT&size=64MiB"
serve first mode=write-through
first=$server first_host=$host
writes --size=16M || gave_up "fio has failed"
kill -STOP "$first"
serve second mode=write-through,nofail=yes
load+=("$first")
wait_until "the owner is named" is_owned
"$forebay" takeover v --state "$host/state"
writes --size=16M --randseed=9 || gave_up "fio has failed"
second_host=$host
kill -CONT "$first"
host=$first_host
# fio ignores the error of a flush at the end, and no other.
if writes --size=16M --randseed=10 --fsync=64; then
  gave_up "the former owner has acknowledged what is lost"
fi
wait_until "the former owner has ended the volume" is_taken_over
host=$second_host
writes --size=16M --randseed=9 --verify_only || gave_up "the former owner has changed something"
kill "$first"
stop
say "passed"
