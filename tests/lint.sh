#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formatter and linters over the whole tree; every finding is an error. Called by ./dev lint.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
bad=0
note() {
    echo "lint: $*"
    bad=1
}
mapfile -t sources < <(git ls-files '*.c' '*.h')
mapfile -t scripts < <(git ls-files '*.sh')
mapfile -t program < <(git ls-files 'base/*.c' 'transport/*.c' 'store/*.c' 'server/*.c' 'engine/*.c')
# A list of calls has no types of its own.
mapfile -t headers < <(git ls-files '*.h' ':!*_calls.h')
includes=(-Ibase/include -Itransport/include -Istore/include -Iengine/include -Iserver -Iapi -Itests/lib)

clang-format --dry-run -Werror "${sources[@]}" || note "clang-format: run clang-format -i on the files above"
for file in "${sources[@]}"; do
    head -n 1 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || note "$file: no SPDX line"
done
for header in "${headers[@]}"; do
    # What a test double stands in for is private to its layer; folders of the store know each other.
    private=()
    case $header in
    tests/lib/* | tests/fuzz/*) private=(-iquote transport -iquote transport/peer -iquote transport/tcp -iquote transport/rdma -iquote store -iquote store/node) ;;
    engine/cuda/* | tests/cuda/runtime.h | tests/cuda/toolkit/*) private=(-Itests/cuda/toolkit -Itransport/device/cuda) ;;
    tests/cuda/*) private=(-iquote transport/device/cuda) ;;
    transport/tcp/* | transport/rdma/* | transport/peer/*) private=(-iquote transport -iquote transport/peer) ;;
    store/*) private=(-iquote store) ;;
    esac
    gcc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -fsyntax-only -iquote "$(dirname "$header")" "${private[@]}" "${includes[@]}" \
        -x c "$header" || note "$header does not compile alone"
done
shellcheck dev .ci/run tests/rdma-vm/run "${scripts[@]}" || note "shellcheck"
# ctuuninitvar: takes an output argument for an input. signConversion: +1 and -1 on unsigned counters are meant.
cppcheck --quiet --error-exitcode=1 --inline-suppr --std=c11 --enable=warning,portability \
    --suppress=ctuuninitvar --suppress=signConversion "${includes[@]}" \
    "${program[@]}" || note "cppcheck"
tests/deploy/check.sh || note "deploy/"
/usr/bin/mypy --no-error-summary --cache-dir=/dev/null --config-file api/python/pyproject.toml api/python/kvplane || note "mypy"
tests/mutants/mutants.py --check || note "tests/mutants/table.py"
tests/links.py || note "links"
git grep -nE '\b(TODO|FIXME|XXX)\b' -- '*.c' '*.h' && note "a TODO without an issue"
[ "$bad" -eq 0 ] && echo "lint: ok"
exit "$bad"
