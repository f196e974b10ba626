#!/usr/bin/env bash
# A Ceph cluster on this machine for tests: a monitor, and OSDs whose disks are sparse files. It
# listens on 127.0.0.1, or on CEPH_ADDRESS when it is made, and needs no root. Without a manager,
# which I/O does not need.
#
#   scripts/ceph-cluster.sh start DIR [OSDS]    make a cluster in the empty folder DIR, or start it
#   scripts/ceph-cluster.sh stop DIR            stop its daemons
#   scripts/ceph-cluster.sh kill DIR DAEMON     kill a daemon: mon or osd.NUMBER
#   scripts/ceph-cluster.sh run DIR DAEMON      start it again
#   scripts/ceph-cluster.sh gateway DIR         start an S3 server on it, and print its address; the
#                                               keys are `access` and `secret`
#
# The configuration is DIR/ceph.conf, the pool `rbd`, with two copies if there is more than one OSD.
set -euo pipefail

usage="usage: ceph-cluster.sh start|stop|kill|run|gateway DIR [OSDS|DAEMON]"
verb=${1:?$usage}
dir=$(realpath -m "${2:?$usage}")
conf=$dir/ceph.conf
python=/usr/bin/python3
unset CEPH_CONF CEPH_ARGS CEPH_KEYRING

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# pid_of DAEMON: its process, if that is still a daemon of this cluster.
pid_of() {
  local pid
  pid=$(cat "$dir/$1.pid" 2>/dev/null) || return 1
  { tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qxF -- "$conf" && echo "$pid"
}

# run DAEMON: starts it in the background.
run() {
  local command
  ! pid_of "$1" >/dev/null || return 0
  case $1 in
    mon) command=(ceph-mon -f -i a -c "$conf") ;;
    osd.*) command=(ceph-osd -f -i "${1#osd.}" -c "$conf") ;;
    gateway) command=(radosgw -f -n client.gateway -c "$conf") ;;
    *) fail "no daemon '$1': mon, osd.NUMBER or gateway" ;;
  esac
  setsid "${command[@]}" </dev/null >>"$dir/$1.out" 2>&1 &
  echo $! >"$dir/$1.pid"
  # Until the child has become the daemon, pid_of cannot tell it.
  for _ in {1..100}; do ! pid_of "$1" >/dev/null || return 0; sleep 0.02; done
  fail "$1 has ended: see $dir/$1.out"
}

# end DAEMON SIGNAL: ends it, and waits for that.
end() {
  local pid
  pid=$(pid_of "$1") || return 0
  kill "-$2" "$pid"
  for _ in {1..300}; do pid_of "$1" >/dev/null || return 0; sleep 0.05; done
  kill -KILL "$pid"
}

write_conf() {
  local port s3_port address=${CEPH_ADDRESS:-127.0.0.1}
  read -r port s3_port < <("$python" -c 'import socket as s, sys; x = [s.socket(), s.socket()]
for y in x: y.bind((sys.argv[1], 0))
print(*(y.getsockname()[1] for y in x))' "$address")
  cat >"$conf" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = [v2:$address:$port/0]
public_addr = $address
cluster_addr = $address
ms_bind_msgr1 = false
keyring = $dir/keyring
log_file = $dir/\$name.log
admin_socket =
crash_dir = $dir
osd_pool_default_size = $(($1 > 1 ? 2 : 1))
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
auth_allow_insecure_global_id_reclaim = false

[mon]
mon_data = $dir/mon
mon_cluster_log_file = $dir/cluster.log
mon_osd_min_down_reporters = 1
mon_data_avail_crit = 0
# Changes of maps wait for up to a second by default, and a start needs ten of them.
paxos_propose_interval = 0.05
paxos_min_wait = 0.01

[osd]
osd_data = $dir/osd.\$id
osd_objectstore = bluestore
bluestore_block_size = $((${CEPH_OSD_GB:-10} << 30))
bluestore_cache_autotune = false
bluestore_cache_size = 134217728
osd_crush_initial_weight = 1
osd_heartbeat_interval = 1
osd_heartbeat_grace = 4

[client.gateway]
rgw_frontends = beast endpoint=$address:$s3_port tcp_nodelay=1
rgw_data = $dir
rgw_enable_usage_log = false
rgw_run_sync_thread = false
CONF
}

# key NAME CAPABILITY...: makes a key in the keyring, which the monitor takes over.
key() {
  local name=$1 caps=()
  shift
  while (($#)); do caps+=(--cap "$1" "$2"); shift 2; done
  ceph-authtool "$dir/keyring" --gen-key -n "$name" "${caps[@]}" >/dev/null
}

make() {
  local at fsid
  mkdir -p "$dir/mon"
  write_conf "$1"
  fsid=$(sed -n 's/^fsid = //p' "$conf")
  ceph-authtool -C "$dir/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
  key client.admin mon 'allow *' osd 'allow *'
  key client.vm mon 'profile rbd' osd 'profile rbd'
  key client.weak mon 'allow r'
  key client.gateway mon 'allow rw' osd 'allow rwx'
  for ((at = 0; at < $1; at++)); do
    key "osd.$at" mon 'allow profile osd' osd 'allow *'
  done
  monmaptool --create --clobber --fsid "$fsid" \
    --addv a "$(sed -n 's/^mon_host = //p' "$conf")" "$dir/monmap" >/dev/null
  ceph-mon --mkfs -i a -c "$conf" --monmap "$dir/monmap" --keyring "$dir/keyring" \
    >>"$dir/mon.out" 2>&1
  run mon
  for ((at = 0; at < $1; at++)); do
    mkdir "$dir/osd.$at"
    cat /proc/sys/kernel/random/uuid >"$dir/osd.$at.uuid"
    ceph-osd --mkfs -i "$at" -c "$conf" --osd-uuid "$(cat "$dir/osd.$at.uuid")" \
      >>"$dir/osd.$at.out" 2>&1
  done
}

# settle OSDS: enters the OSDs in the map, waits until they serve, and makes the pool. One
# connection for all commands, because each run of `ceph` takes half a second.
settle() {
  "$python" - "$conf" "$dir" "$1" <<'PYTHON'
import json, rados, rbd, sys, time
conf, folder, osds = sys.argv[1], sys.argv[2], int(sys.argv[3])
end = time.monotonic() + 120

def wait_for(what, is_there):
    while not is_there():
        if time.monotonic() > end:
            sys.exit(f"ceph-cluster.sh: {what}: gave up waiting: see {folder}")
        time.sleep(0.1)

cluster = rados.Rados(conffile=conf, rados_id="admin", conf={"client_mount_timeout": "5"})
def connect():
    try:
        cluster.connect()
        return True
    except rados.Error:
        return False
wait_for("the monitor", connect)

def command(**arguments):
    code, out, error = cluster.mon_command(json.dumps(dict(arguments, format="json")), b"")
    if code:
        raise RuntimeError(f"{arguments}: {code} {error}")
    return json.loads(out) if out.strip() else None

known = {osd["osd"] for osd in command(prefix="osd dump")["osds"]}
for osd in set(range(osds)) - known:
    with open(f"{folder}/osd.{osd}.uuid") as uuid:
        command(prefix="osd new", uuid=uuid.read().strip(), id=osd)
open(f"{folder}/known", "w").close()
wait_for("the OSDs", lambda: sum(osd["up"] for osd in command(prefix="osd dump")["osds"]) == osds)
if "rbd" not in cluster.list_pools():
    command(prefix="osd pool create", pool="rbd")
    with cluster.open_ioctx("rbd") as pool:
        rbd.RBD().pool_init(pool, True)
cluster.shutdown()
PYTHON
}

start() {
  local osds at settling
  [[ -e $conf ]] || make "${1:-1}"
  osds=$(find "$dir" -maxdepth 1 -name 'osd.*.uuid' | wc -l)
  run mon
  rm -f "$dir/known"
  settle "$osds" &
  settling=$!
  # An OSD may boot once the monitor knows its identity.
  while [[ ! -e $dir/known ]] && kill -0 "$settling" 2>/dev/null; do sleep 0.1; done
  for ((at = 0; at < osds; at++)); do run "osd.$at"; done
  wait "$settling"
}

# gateway: starts the S3 server, with one user.
gateway() {
  local address
  address=$(sed -n 's/^rgw_frontends = .*endpoint=\([^ ]*\).*/\1/p' "$conf")
  run gateway
  for _ in {1..600}; do
    if (exec 3<>"/dev/tcp/${address/://}") 2>/dev/null; then break; fi
    pid_of gateway >/dev/null || fail "the gateway has ended: see $dir/gateway.out"
    sleep 0.1
  done
  radosgw-admin -c "$conf" -n client.gateway user create --uid test --display-name test \
    --access-key access --secret-key secret >>"$dir/gateway.out" 2>&1 || true
  echo "http://$address"
}

case $verb in
  gateway) gateway ;;
  start) start "${3:-1}" ;;
  stop)
    for pid in "$dir"/gateway.pid "$dir"/osd.*.pid "$dir"/mon.pid; do
      [[ ! -e $pid ]] || end "$(basename "$pid" .pid)" TERM
    done
    ;;
  kill) end "${3:?$usage}" KILL ;;
  run) run "${3:?$usage}" ;;
  *) fail "$usage" ;;
esac
