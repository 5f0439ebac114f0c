#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ptx.sh [--check]: makes pieces.ptx of pieces.cu and pieces.h, or sees whether it is what they make (77: it cannot
# tell, for want of the nvcc that made it). The text is lowered to the oldest version of PTX that has all it uses, so that
# older drivers take it, too, and assembled for every architecture in the list, which is what a build with nvcc embeds.
set -eu
cd "$(dirname "$0")"
version=6.4
architectures='75 80 86 89 90 100 120'
release=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
made_by=$(sed -n 's|^// nvcc \([0-9.]*\)$|\1|p' pieces.ptx 2>/dev/null || true)
if [ "${1:-}" = --check ] && [ "$release" != "$made_by" ]; then
    echo "SKIP: pieces.ptx: made by nvcc $made_by, which is not here (${release:-none} is)"
    exit 77
fi
[ -n "$release" ] || { echo "ptx.sh: no nvcc" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvcc -arch=compute_75 -ptx pieces.cu -o "$work/raw.ptx"
{
    echo '// SPDX-License-Identifier: Apache-2.0'
    echo '// Made by ptx.sh; do not edit.'
    echo "// nvcc $release"
    sed -e '/^\/\//d' -e "s/^\.version .*/.version $version/" "$work/raw.ptx" | cat -s
} >"$work/pieces.ptx"
for architecture in $architectures; do
    ptxas -arch="sm_$architecture" "$work/pieces.ptx" -o "$work/$architecture.cubin"
done
if [ "${1:-}" = --check ]; then
    cmp "$work/pieces.ptx" pieces.ptx || { echo "pieces.ptx is not what pieces.cu makes: run engine/cuda/ptx.sh"; exit 1; }
else
    cp "$work/pieces.ptx" pieces.ptx
fi
