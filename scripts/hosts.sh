#!/usr/bin/env bash
# Two hosts that can be cut off from this machine: network namespaces NAME-0 and NAME-1. What runs
# in them reaches this machine, and servers on it, at one address; files and Unix sockets are
# shared. It needs root.
#
#   scripts/hosts.sh make NAME          makes them, and prints the address
#   scripts/hosts.sh cut NAME HOST      cuts host 0 or 1 off: packets are lost, and nothing is told
#   scripts/hosts.sh heal NAME HOST     connects it again
#   scripts/hosts.sh remove NAME        removes them with the address
#
# NAME has at most 12 characters. The addresses are of 198.18.0.0/15, which is for tests.
set -euo pipefail

usage="usage: hosts.sh make|cut|heal|remove NAME [HOST]"
verb=${1:?$usage}
name=${2:?$usage}

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# The address of this machine for these hosts has the name as its label.
address() { ip -oneline -4 address show label "lo:$name" | sed -n 's|.* inet \([0-9.]*\)/.*|\1|p'; }

make() {
  local net host here
  for net in {1..254}; do
    here=198.18.$net
    if ip address add "$here.1/32" dev lo label "lo:$name" 2>/dev/null; then break; fi
    [[ $net != 254 ]] || fail "there is no free address in 198.18.0.0/16, or no right to take it"
  done
  for host in 0 1; do
    ip netns add "$name-$host"
    ip link add "$name-$host" type veth peer name eth0 netns "$name-$host"
    ip address add "$here.$((4 * host + 5))/30" dev "$name-$host"
    ip link set "$name-$host" up
    ip -n "$name-$host" address add "$here.$((4 * host + 6))/30" dev eth0
    ip -n "$name-$host" link set lo up
    ip -n "$name-$host" link set eth0 up
    ip -n "$name-$host" route add default via "$here.$((4 * host + 5))"
  done
  echo "$here.1"
}

remove() {
  local host address
  for host in 0 1; do ip netns delete "$name-$host" 2>/dev/null || true; done
  address=$(address)
  [[ -z $address ]] || ip address delete "$address/32" dev lo
}

case $verb in
  make) make ;;
  cut) ip link set "$name-${3:?$usage}" down ;;
  heal) ip link set "$name-${3:?$usage}" up ;;
  remove) remove ;;
  *) fail "$usage" ;;
esac
