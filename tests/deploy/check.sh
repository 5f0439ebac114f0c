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

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(kubernetes)
for part in "${parts[@]}"; do
    case $part in
    kubernetes) check_kubernetes ;;
    *) echo "check.sh: no part '$part'" >&2 && exit 2 ;;
    esac
done
exit "$bad"
