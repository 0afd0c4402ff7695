# shellcheck shell=bash
# Two nodes on one machine: network namespaces on one bridge, each with a host name of its own. Sourced; needs root.
#
#   make_nodes                     makes what is missing of them; fails where the system does not allow it
#   on_node NAME PROGRAM ARGS...   runs a program on one of them
#   remove_nodes                   removes them; what runs there is to be ended before

# The first line of a slurm.conf that is for tests.
# shellcheck disable=SC2034
readonly SLURM_MARK="# written by tests/slurm/setup.sh"

readonly BRIDGE=hpcgnn-test CONTROLLER_ADDRESS=10.213.77.1
readonly NODES=(node1=10.213.77.11 node2=10.213.77.12)

namespace() {
    echo "$BRIDGE-$1"
}

make_nodes() {
    ip netns list >/dev/null 2>&1 && unshare --net --uts true 2>/dev/null || return 1
    if ! ip link show "$BRIDGE" >/dev/null 2>&1; then
        ip link add "$BRIDGE" type bridge 2>/dev/null || return 1
        ip address add "$CONTROLLER_ADDRESS/24" dev "$BRIDGE"
        ip link set "$BRIDGE" up
    fi
    local node
    for node in "${NODES[@]}"; do
        if [[ ! -e /run/netns/$(namespace "${node%=*}") ]]; then
            make_node "${node%=*}" "${node#*=}" || return 1
        fi
    done
}

make_node() {
    local space cable=hpcgnn-$1
    space=$(namespace "$1")
    ip netns add "$space" || return 1
    ip link add "$cable" type veth peer name eth0 netns "$space" || return 1
    ip link set "$cable" master "$BRIDGE" up
    ip -n "$space" address add "$2/24" dev eth0
    ip -n "$space" link set eth0 up
    ip -n "$space" link set lo up
}

on_node() {
    local name=$1
    shift
    # shellcheck disable=SC2016
    nsenter --net="/run/netns/$(namespace "$name")" unshare --uts \
        bash -c 'hostname "$0"; exec "$@"' "$name" "$@"
}

remove_nodes() {
    local node
    for node in "${NODES[@]%=*}"; do
        ip netns delete "$(namespace "$node")" 2>/dev/null || true
        ip link delete "hpcgnn-$node" 2>/dev/null || true
    done
    ip link delete "$BRIDGE" 2>/dev/null || true
}
