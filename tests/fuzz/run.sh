#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ./dev fuzz: runs fuzz targets, as many at a time as there are cores. What it finds is kept in build/fuzz/found, what it
# saw that was new in build/fuzz/corpus; --merge takes what of that reaches more into tests/fuzz/corpus.
#   run.sh BUILD SECONDS MERGE [TARGET…]
set -euo pipefail
build=$1 seconds=$2 merge=$3
shift 3
corpora=tests/fuzz/corpus
jobs=$(nproc)

if [ $# -eq 0 ]; then
    while read -r name _; do set -- "$@" "$name"; done <"$build/fuzz_parsers.txt"
fi
for name in "$@"; do
    if [ ! -x "$build/$name" ]; then
        echo "fuzz: there is no target '$name'; there are: $(cut -d ' ' -f 1 "$build/fuzz_parsers.txt" | tr '\n' ' ')" >&2
        exit 1
    fi
done
mkdir -p "$build/found" "$build/fuzz-logs"

# One target; its log tells the rest. Limits are wide: a machine may be slow, and what is wrong is far beyond them.
run_one() {
    local name=$1 options=()
    mkdir -p "$build/corpus/$name"
    if [ -f "tests/fuzz/dictionaries/$name" ]; then options+=(-dict="tests/fuzz/dictionaries/$name"); fi
    "$build/$name" -max_total_time="$seconds" -timeout=120 -rss_limit_mb=3072 -malloc_limit_mb=512 -print_final_stats=1 \
        "${options[@]}" -artifact_prefix="$build/found/$name-" "$build/corpus/$name" "$corpora/$name" \
        >"$build/fuzz-logs/$name" 2>&1
}

# Prints what was found by that target.
tell() {
    local name=$1 log=$build/fuzz-logs/$1 input
    input=$(sed -n 's/.*Test unit written to //p' "$log" | head -n 1)
    echo "== $name"
    grep -E 'assertion failed|ERROR: |runtime error|SUMMARY: ' "$log" | head -n 5 || true
    if [ -n "$input" ]; then
        echo "kept:   $input"
        echo "replay: $build/$name $input"
    fi
    echo "log:    $log"
}

failed=() running=0 names=("$@")
declare -A of
for name in "${names[@]}"; do
    run_one "$name" &
    of[$!]=$name
    running=$((running + 1))
    if [ "$running" -ge "$jobs" ]; then
        wait -n -p ended || failed+=("${of[$ended]}")
        running=$((running - 1))
    fi
done
while [ "$running" -gt 0 ]; do
    wait -n -p ended || failed+=("${of[$ended]}")
    running=$((running - 1))
done

execs=0
for name in "${names[@]}"; do
    n=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/fuzz-logs/$name")
    execs=$((execs + ${n:-0}))
done
if [ ${#failed[@]} -gt 0 ]; then
    for name in "${failed[@]}"; do tell "$name"; done
    echo "fuzz: found by ${failed[*]}: see above; once mended, keep the input in $corpora/TARGET"
    exit 1
fi
# What has a name of its own stays; what the fuzzers named is replaced by the least that reaches as much.
if [ -n "$merge" ]; then
    for name in "${names[@]}"; do
        merged=$(mktemp -d)
        find "$corpora/$name" -type f ! -regex '.*/[0-9a-f]*' -exec cp -t "$merged" {} +
        "$build/$name" -merge=1 -set_cover_merge=1 -use_counters=0 -timeout=120 "$merged" "$corpora/$name" \
            "$build/corpus/$name" >"$build/fuzz-logs/$name.merge" 2>&1
        find "$corpora/$name" -type f -regex '.*/[0-9a-f]*' -delete
        cp "$merged"/* "$corpora/$name/"
        rm -rf "$merged"
    done
    echo "fuzz: the corpora have $(find "$corpora" -type f | wc -l) files, $(($(cat "$corpora"/*/* | wc -c) >> 10)) KiB"
fi
echo "fuzz: ok targets=${#names[@]} seconds=$seconds execs=$execs"
