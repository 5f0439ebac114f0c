#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything under deploy/ by the tool that knows it, and against the program; what is wrong is printed. Called by
# tests/lint.sh; by hand: tests/deploy/check.sh [kubernetes prometheus grafana systemd docker]
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=/usr/bin/python3 # Debian's: the packages of deploy/packages/lint.txt are its own
bad=0

# say WHAT: the lines of $work/out belong to it.
say() {
    sed "/ is deprecated/d; s|^|deploy: $1: |" "$work/out"
    bad=1
}

check_kubernetes() {
    local overlay
    for overlay in deploy/kubernetes/overlays/*/; do
        overlay=$(basename "$overlay")
        kubectl kustomize "deploy/kubernetes/overlays/$overlay" >"$work/$overlay.yaml" 2>"$work/out" || {
            say "kustomize $overlay"
            continue
        }
        "$python" tests/deploy/manifests.py "$overlay" "$work/$overlay.yaml" >"$work/out" 2>&1 || say kubernetes
    done
}

check_prometheus() {
    local rules=(deploy/prometheus/rules.yml deploy/prometheus/alerts.yml)
    promtool check rules "${rules[@]}" >"$work/out" 2>&1 || say "promtool check rules"
    promtool check config deploy/prometheus/prometheus.yml >"$work/out" 2>&1 || say "promtool check config"
    promtool test rules tests/deploy/rules_test.yml >"$work/out" 2>&1 || say "promtool test rules"
    "$python" tests/deploy/metrics.py rules "${rules[@]}" >"$work/out" 2>&1 || say prometheus
}

check_grafana() {
    local dashboard
    for dashboard in deploy/grafana/*.json; do
        if ! "$python" tests/deploy/metrics.py dashboard "$dashboard" "$work/panels.yml" >"$work/out" 2>&1; then
            say "$dashboard"
        elif ! promtool check rules "$work/panels.yml" >"$work/out" 2>&1; then
            say "$dashboard: promtool"
        fi
    done
}

# Units as they lie on a host, without and with what lets devices in.
check_systemd() {
    local root=$work/root unit kind exposure
    mkdir -p "$root"/{etc/systemd/system,usr/lib/systemd,usr/bin}
    cp -r /usr/lib/systemd/system "$root/usr/lib/systemd/"
    install -m 755 /dev/null "$root/usr/bin/kvplane"
    cp deploy/systemd/*.service "$root/etc/systemd/system/"
    for kind in plain rdma gpu; do
        exposure=15
        if [ "$kind" != plain ]; then
            exposure=19
            for unit in kvplane@ kvplane-store; do
                install -D -m 644 "deploy/systemd/$kind/$kind.conf" "$root/etc/systemd/system/$unit.service.d/$kind.conf"
            done
        fi
        for unit in kvplane@engine-0 kvplane-store; do
            systemd-analyze verify --man=no --root="$root" "$unit.service" >"$work/out" 2>&1 || true
            [ ! -s "$work/out" ] || say "systemd-analyze verify $unit, $kind"
            systemd-analyze security --no-pager --offline=true --root="$root" --threshold="$exposure" "$unit.service" \
                >"$work/out" 2>&1 || { sed -i '/^.✗\|exposure/!d' "$work/out" && say "systemd-analyze security $unit, $kind"; }
        done
    done
    [ "$(id -u)" -eq 0 ] || return 0 # they give files away
    if ! systemd-sysusers --root="$root" "$PWD/deploy/systemd/kvplane.sysusers" >"$work/out" 2>&1 ||
        ! systemd-tmpfiles --root="$root" --create "$PWD/deploy/systemd/kvplane.tmpfiles" >>"$work/out" 2>&1 ||
        [ "$(stat -c %a "$root/run/kvplane" "$root/etc/kvplane" | sort -u)" != 750 ]; then
        say "sysusers, tmpfiles"
    fi
}

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(kubernetes prometheus grafana systemd docker)
for part in "${parts[@]}"; do
    case $part in
    kubernetes) check_kubernetes ;;
    prometheus) check_prometheus ;;
    grafana) check_grafana ;;
    systemd) check_systemd ;;
    docker) "$python" deploy/docker/replay.py check >"$work/out" 2>&1 || say docker ;;
    *) echo "check.sh: no part '$part'" >&2 && exit 2 ;;
    esac
done
exit "$bad"
