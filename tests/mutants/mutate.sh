# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What lists of mutants are made of (parity.sh, planted.sh): usage `. mutate.sh BUILD_DIR [NAME…]`, a `try` for each, and
# `finish LIST` at the end.
#
# Nothing in the tree is touched: the changed file is compiled beside it and linked before the library that has the
# original. What was killed is remembered in BUILD_DIR/mutants until its source or its test changes, so that a run that was
# broken off goes on where it was.
set -u
build=$(readlink -f "$1") || exit 2
shift
src=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/../..")
names=" $* "
results=$build/mutants
mkdir -p "$results" || exit 2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
total=0 survived=0 remembered=0

# The command that makes a target, without what is only for the build system.
command_of() {
    ninja -C "$build" -t commands "$1" | tail -n 1
}

object_of() { # of a source file
    ninja -C "$build" -t targets all | sed -n "s|^\(.*/$(basename "$1").o\): .*|\1|p" |
        while read -r object; do
            case $(command_of "$object") in
            *"-c $src/$1"*) echo "$object" && break ;;
            esac
        done
}

# Compiles $2 (a file) as if it were the source file $1, with $3 searched for headers first, into $4.
compile() {
    local command
    command=$(command_of "$(object_of "$1")" | sed -E "s|-MD -MT [^ ]+ -MF [^ ]+||; s| -o [^ ]+ -c .*||; s|^ccache ||; s|^[^ ]*/ccache ||")
    (cd "$build" && eval "$command -iquote $3 -iquote $src/$(dirname "$1") -w -o $4 -c $2") >"$tmp/cc.log" 2>&1 || {
        cat "$tmp/cc.log"
        return 1
    }
}

# Links test program $1 with the objects in $tmp/objects before everything, as $tmp/test.
link() {
    local command object
    command=$(command_of "$1")
    for object in "$tmp"/objects/*.o; do # what the program is linked with by name is replaced
        command=$(echo "$command" | sed -E "s|[^ ]*/$(basename "$object") ||g")
    done
    command=$(echo "$command" | sed -E "s| -o $1 | -o $tmp/test $(echo "$tmp"/objects/*.o) |")
    (cd "$build" && eval "$command") >"$tmp/cc.log" 2>&1 || {
        cat "$tmp/cc.log"
        return 1
    }
}

script_of() { # it_NAME or it_NAME:TEST
    local name=${1#it_}
    echo "$src/tests/integration/test_${name%%:*}.py"
}

run() { # a test program, or one of tests/integration with the program changed
    local one=()
    case $1 in
    it_*)
        case $1 in *:*) one=("${1#*:}") ;; esac
        KVPLANE_PROGRAM=$tmp/test KVPLANE_PROXY=$build/kvplane_proxy KVPLANE_GROUPS=$build/kvplane_groups \
            timeout 280 python3 "$(script_of "$1")" "${one[@]}"
        ;;
    simulate) timeout 900 "$tmp/test" --seeds "${KVPLANE_SEEDS:-300}" --no-shrink ;;
    *) timeout 280 "$tmp/test" ;;
    esac
}

# try NAME FILE[:SOURCE…] "TEST…" OLD NEW: in FILE (a header: then the sources that are compiled with it), OLD once
# replaced by NEW, must fail one of the tests.
try() {
    local name=$1 file=${2%%:*} sources=${2#*:} tests=$3 old=$4 new=$5 key test source failed changed
    local programs=()
    case $names in "  " | *" $name "*) ;; *) return ;; esac
    total=$((total + 1))
    rm -rf "$tmp/objects" "$tmp/inc"
    mkdir -p "$tmp/objects" "$tmp/inc"
    changed=$tmp/inc/$(basename "$file")
    case $file in
    *.h)
        changed=$tmp/inc/$(echo "$file" | sed -E 's,^(server|(base|transport|store)/include)/,,')
        mkdir -p "$(dirname "$changed")"
        ;;
    *) sources=$file ;;
    esac
    OLD="$old" NEW="$new" perl -0777 -pe 's/\Q$ENV{OLD}\E/$ENV{NEW}/ or die "no match\n"' "$src/$file" >"$changed" \
        2>"$tmp/perl.log" || {
        echo "STALE    $name: its text is not in $file any more"
        survived=$((survived + 1))
        return
    }
    for test in $tests; do
        programs+=("$build/$(program_of "$test")")
        case $test in it_*) programs+=("$(script_of "$test")") ;; esac
    done
    key=$({ echo "$tests" && cat "$changed" "${programs[@]}"; } | sha256sum)
    if [ "$(head -n 1 "$results/$name" 2>/dev/null)" = "$key" ]; then
        remembered=$((remembered + 1))
        tail -n +2 "$results/$name"
        return
    fi
    for source in ${sources//,/ }; do
        case $file in *.h) changed=$src/$source ;; esac
        compile "$source" "$changed" "$tmp/inc" "$tmp/objects/$(basename "$source").o" || {
            echo "BROKEN   $name does not compile"
            survived=$((survived + 1))
            return
        }
    done
    for test in $tests; do
        link "$(program_of "$test")" || {
            echo "BROKEN   $name does not link into $test"
            survived=$((survived + 1))
            return
        }
        if run "$test" >"$tmp/out" 2>&1; then
            continue
        fi
        failed=$(grep -m1 -oE '(FAIL|CRASH)[^:]*\] [a-z_]+::[a-z0-9_A-Z]+|^(FAIL|ERROR): [a-zA-Z0-9_]+' "$tmp/out" | sed 's/.*[] ]//')
        [ "$test" != simulate ] || failed=$(grep -m1 -E '^seed ' "$tmp/out" | cut -c1-150)
        {
            echo "$key"
            echo "killed   $name: $test ${failed:-(did not end)}"
        } | tee "$results/$name" | tail -n 1
        return
    done
    echo "SURVIVED $name ($tests)"
    survived=$((survived + 1))
}

program_of() {
    case $1 in it_*) echo kvplane ;; *) echo "$1" ;; esac
}

# finish LIST: the last line; exit 1: a mutant survived, or no longer applies.
finish() {
    echo "$1: $total mutants, $survived survived, $remembered as remembered"
    test "$survived" -eq 0
}
