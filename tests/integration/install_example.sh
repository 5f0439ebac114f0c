#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install_example.sh BUILD SOURCE CC: installs to a folder of its own, builds the example against what was installed,
# and looks at what an engine author would stumble over.
set -eu
build=$1 source=$2 cc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install_example: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; fail "install"; }
mv "$work/prefix" "$work/moved" # the package must not remember where it was installed
pc=$(find "$work/moved" -name kvplane.pc)
[ -n "$pc" ] || fail "no kvplane.pc"
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
cflags=$(pkg-config --cflags kvplane)
libs=$(pkg-config --libs kvplane)
lib=$(find "$work/moved" -name libkvplane.so.0)
[ -n "$lib" ] || fail "no libkvplane.so.0"

# Away from the sources: nothing but the installed tree is found.
cp "$source/engine/example.c" "$work/example.c"
cd "$work"
# shellcheck disable=SC2086
$cc -Wall -Wextra -Werror -Wno-unused-parameter example.c $cflags $libs -o example
lines=$(wc -l <example.c)
[ "$lines" -lt 150 ] || fail "the example has $lines lines"

# The header stands alone, in strict C11 and, where there is a compiler, in C++.
echo '#include <kvplane.h>' >header.c
# shellcheck disable=SC2086
$cc -std=c11 -pedantic -Wall -Wextra -Werror $cflags -fsyntax-only header.c
if command -v c++ >/dev/null; then
    # shellcheck disable=SC2086
    c++ -Wall -Wextra -Werror $cflags -fsyntax-only -x c++ header.c
fi

# Only the API is visible.
foreign=$(nm -D --defined-only "$lib" | awk '{print $3}' | grep -v '^kvplane_' || true)
[ -z "$foreign" ] || fail "visible beyond the API: $foreign"

# It runs, and says what is missing.
LD_LIBRARY_PATH=$(dirname "$lib")
export LD_LIBRARY_PATH
env -u KVPLANE_SOCKET ./example 2>message && fail "ran without a socket"
grep -q '^socket: ' message || fail "unhelpful: $(cat message)"
echo "install_example: ok"
