#!/usr/bin/env bash
# Two hosts that can be cut off from this machine: network namespaces NAME-0 and NAME-1, at one
# bridge with this machine. What runs in them reaches this machine, and servers on it, at one
# address; files and Unix sockets are shared. It needs root.
#
#   scripts/hosts.sh make NAME          makes them, and prints the address
#   scripts/hosts.sh cut NAME HOST      cuts host 0 or 1 off: packets are lost, and nothing is told
#   scripts/hosts.sh heal NAME HOST     connects it again
#   scripts/hosts.sh moving NAME        prints an address for bring and drop
#   scripts/hosts.sh bring NAME HOST    gives it to a host, and announces it there (it needs arping
#                                       of iputils; ANNOUNCE=no leaves that out)
#   scripts/hosts.sh drop NAME HOST     takes it from a host
#   scripts/hosts.sh remove NAME        removes the hosts, with the addresses
#
# NAME has at most 12 characters. The addresses are of 198.18.0.0/15, which is for tests.
set -euo pipefail

usage="usage: hosts.sh make|cut|heal|moving|bring|drop|remove NAME [HOST]"
verb=${1:?$usage}
name=${2:?$usage}

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# The address of this machine for these hosts has the name as its label.
address() { ip -oneline -4 address show label "lo:$name" | sed -n 's|.* inet \([0-9.]*\)/.*|\1|p'; }

# The address that moves.
moving() {
  local here
  here=$(address)
  [[ -n $here ]] || fail "there are no hosts of the name $name"
  echo "${here%.*}.100"
}

make() {
  local net host here
  for net in {1..254}; do
    here=198.18.$net
    if ip address add "$here.1/32" dev lo label "lo:$name" 2>/dev/null; then break; fi
    [[ $net != 254 ]] || fail "there is no free address in 198.18.0.0/16, or no right to take it"
  done
  ip link add "$name" type bridge
  ip address add "$here.2/24" dev "$name"
  ip link set "$name" up
  for host in 0 1; do
    ip netns add "$name-$host"
    ip link add "$name-$host" type veth peer name eth0 netns "$name-$host"
    ip link set "$name-$host" master "$name"
    ip link set "$name-$host" up
    ip -n "$name-$host" address add "$here.$((10 + host))/24" dev eth0
    ip -n "$name-$host" link set lo up
    ip -n "$name-$host" link set eth0 up
  done
  echo "$here.1"
}

# bring HOST: the neighbours learn where the address is now, as from keepalived or IPaddr2.
bring() {
  local moving
  moving=$(moving)
  ip -n "$name-$1" address replace "$moving/32" dev eth0
  [[ ${ANNOUNCE:-yes} == yes ]] || return 0
  # It waits a second for answers.
  ip netns exec "$name-$1" arping -q -U -c 1 -I eth0 "$moving" >/dev/null 2>&1 &
}

drop() {
  # It may have none.
  ip -n "$name-$1" address delete "$(moving)/32" dev eth0 2>/dev/null || true
}

remove() {
  local host address
  for host in 0 1; do
    # The kernel removes that of a namespace some time later.
    ip link delete "$name-$host" 2>/dev/null || true
    ip netns delete "$name-$host" 2>/dev/null || true
  done
  ip link delete "$name" 2>/dev/null || true
  address=$(address)
  [[ -z $address ]] || ip address delete "$address/32" dev lo
}

case $verb in
  make) make ;;
  cut) ip link set "$name-${3:?$usage}" down ;;
  heal) ip link set "$name-${3:?$usage}" up ;;
  moving) moving ;;
  bring) bring "${3:?$usage}" ;;
  drop) drop "${3:?$usage}" ;;
  remove) remove ;;
  *) fail "$usage" ;;
esac
