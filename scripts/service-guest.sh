#!/bin/bash
# Runs in the guest that scripts/service.sh boots, as a service beside the one that it tests. The
# last line "guest: all passed" means success.
set -euo pipefail

say() { echo "guest: $*"; }

finish() {
  local status=$?
  if ((status)); then
    say "failed with $status"
    systemctl list-jobs --no-pager || true
    systemctl status --no-pager --lines=0 forebay || true
    journalctl -b -u forebay --no-pager --lines=40 || true
  fi
  systemctl poweroff --force --force
}
trap finish EXIT

# within SECONDS WHAT COMMAND...: repeats a command until it succeeds.
within() {
  local seconds=$1 what=$2 begin=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS - begin < seconds)) || { say "not within $seconds s: $what"; exit 1; }
    sleep 0.5
  done
  say "$what, after $((SECONDS - begin)) s"
}

# A link, by forebay.tmpfiles.
state=/run/forebay
show() { systemctl show --property "$1" --value forebay; }
is_booted() { [[ $(systemctl is-system-running) != @(initializing|starting) ]]; }
serves() { forebay status --json --state "$state" | grep -q "\"name\": *\"$1\""; }
server() { forebay status --json --state "$state" | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*$'; }
is_new_server() { local pid; pid=$(server) && [[ $pid != "$1" ]]; }

# is_active KEEPER: the unit is active, with this main process, and was never started again.
is_active() {
  systemctl is-active --quiet forebay
  [[ $(show MainPID) == "$1" && $(show NRestarts) == 0 ]]
}

# is_restarted TIMES: the unit is active, and was started again so many times.
is_restarted() {
  [[ $(show NRestarts) == "$1" && $(show ActiveState) == active ]] && serves second
}

# upgrade_and_kill: without a keeper of the program's own, as systemd keeps the pool: the main
# process is the server, which systemd starts again with the pool.
upgrade_and_kill() {
  local old
  [[ $(show MainPID) == "$(server)" && $(show NFileDescriptorStore) == 1 ]]
  old=$(server)
  forebay upgrade --state "$state"
  within 120 "upgraded" is_new_server "$old"
  within 120 "active again" is_restarted 1
  old=$(server)
  kill -KILL "$old"
  within 120 "served again after a kill" is_new_server "$old"
  within 120 "active again after a kill" is_restarted 2
  [[ $(show NFileDescriptorStore) == 1 ]]
}

# upgrade_and_kill_kept: the main process is the keeper, which no upgrade or crash ends.
upgrade_and_kill_kept() {
  local keeper old
  keeper=$(show MainPID)
  old=$(server)
  forebay upgrade --state "$state"
  within 120 "upgraded" is_new_server "$old"
  is_active "$keeper"
  old=$(server)
  kill -KILL "$old"
  within 120 "served again after a kill" is_new_server "$old"
  is_active "$keeper"
  kill -KILL "$keeper"
  within 120 "served again after a kill of the keeper" is_restarted 1
}

version=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
say "systemd $version"
within 600 "booted" is_booted
systemctl is-active forebay
main=$(show MainPID)
serves first
[[ $(stat -c %U "/proc/$(server)") == forebay ]]
[[ $(stat -L -c '%U %G %a' "$state/nbd.sock") == 'forebay disk 660' ]]
# CAP_SYS_RESOURCE.
grep -q '^CapEff:\s*0*1000000$' "/proc/$(server)/status"
say "runs as its own user, with one capability"

within 120 "mounted at boot" mountpoint -q /srv
[[ $(findmnt -no SOURCE /srv) == /dev/@(ublkb|nbd)* ]]
forebay devices | grep -q 'mounted.*live'
# write: files on the block device, until there is /tmp/stop. An error ends it.
write() {
  local number=0
  while [[ ! -e /tmp/stop ]]; do
    number=$((number + 1))
    head -c 100000 /dev/urandom >/tmp/source
    cp /tmp/source /srv/file && sync /srv/file && cmp /tmp/source /srv/file || return 1
    echo "$number" >/tmp/written
    sleep 0.1
  done
}
write &
writer=$!
# has_written_more COUNT: more than so many files.
has_written_more() { (($(cat /tmp/written 2>/dev/null || echo 0) > $1)); }
within 120 "files are written" has_written_more 3

cat >>/etc/forebay/forebay.toml <<'TOML'

[[volume]]
name = "second"
backing = "/dev/vdc"
TOML
systemctl reload forebay
within 120 "reloaded" serves second
is_active "$main"
cp /etc/forebay/forebay.toml /tmp/good.toml
echo 'mistake = 1' >/etc/forebay/forebay.toml
if systemctl reload forebay; then say "a reload of a wrong file passed"; exit 1; fi
cp /tmp/good.toml /etc/forebay/forebay.toml
is_active "$main"
serves second
say "a reload of a wrong file failed"

if ((version >= 254)); then upgrade_and_kill; else upgrade_and_kill_kept; fi
# A server that hangs is killed, by systemd or by its keeper.
hanging=$(server)
kill -STOP "$hanging"
within 240 "served again after a hang" is_new_server "$hanging"

main=$(show MainPID)
systemctl restart forebay
systemctl is-active forebay
[[ $(show MainPID) != "$main" ]]
serves second
say "restarted"

within 120 "files are still written" has_written_more "$(cat /tmp/written)"

systemctl stop forebay
[[ $(systemctl is-active forebay) == inactive && $(show Result) == success ]]
[[ $(show TasksCurrent) != [1-9]* ]]
say "stopped"

written=$(cat /tmp/written)
sleep 3
kill -0 "$writer"
forebay devices | grep -q 'mounted.*waiting'
systemctl start forebay
within 120 "files are written again" has_written_more "$((written + 3))"
touch /tmp/stop
wait "$writer"
systemctl stop srv.mount forebay-attach@mounted
[[ ! -e /dev/forebay/mounted ]]
if dmesg | grep -E 'I/O error|Remounting'; then exit 1; fi
say "unmounted and detached"

# greeting: what the server says to a client that connects to the socket and waits.
greeting() {
  # shellcheck disable=SC2016
  timeout 240 perl -MIO::Socket::UNIX -e '
    $socket = IO::Socket::UNIX->new(Peer => "/var/lib/forebay/nbd.sock") or die "refused: $!";
    read $socket, $text, 16; print $text'
}
systemctl stop forebay
# The settings name the same socket, by a link. Its rights are those of the unit.
sed -i 's/,mode=0660,group=disk//' /etc/forebay/forebay.toml
systemctl start forebay.socket
[[ $(systemctl is-active forebay) == inactive ]]
[[ $(stat -c '%U %a' /var/lib/forebay/nbd.sock) == 'forebay 600' ]]
[[ $(greeting) == NBDMAGICIHAVEOPT ]]
systemctl is-active forebay
serves second
say "a client has started the service, and is served"
main=$(show MainPID)
systemctl restart forebay &
restart=$!
# One that the old server has accepted may end with it.
for _ in 1 2 3 4 5 6 7 8; do greeting >/dev/null; done
wait "$restart"
[[ $(show MainPID) != "$main" && $(greeting) == NBDMAGICIHAVEOPT ]]
systemctl stop forebay.socket forebay
[[ ! -e /var/lib/forebay/nbd.sock ]]
say "no client was refused while it restarted"

# systemd says so when it ignores a notification.
if journalctl -b --no-pager | grep "reception only permitted"; then exit 1; fi
say "all passed"
