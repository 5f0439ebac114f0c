#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install_example.sh BUILD SOURCE CC: installs to a folder of its own, builds the example against what was installed,
# and looks at what an engine author would stumble over.
set -eu
build=$1 source=$2 cc=$3
work=$(mktemp -d)
daemon='' engine=''
finish() {
    for pid in $engine $daemon; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT
fail() { echo "install_example: $*" >&2; exit 1; }
# until COMMAND…: repeats it until it succeeds, for 20 seconds at most.
until_ok() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 400 ] || fail "never came true: $*"
        sleep 0.05
    done
}

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

# The one for CUDA engines, where it was built: the same, and it says that there is no driver, or works.
cuda_lib=$(find "$work/moved" -name libkvplane_cuda.so.0)
if [ -n "$cuda_lib" ]; then
    cp "$source/engine/cuda/example.c" "$work/cuda_example.c"
    cudart=$(sed -n 's/^CUDA_CUDART:FILEPATH=//p' "$build/CMakeCache.txt")
    include=$(dirname "$(dirname "$cudart")")/include
    # shellcheck disable=SC2046
    $cc -Wall -Wextra -Werror -Wno-unused-parameter cuda_example.c -isystem "$include" \
        $(pkg-config --cflags --libs kvplane_cuda) "$cudart" "-Wl,-rpath,$(dirname "$cudart")" -o cuda_example
    echo '#include <kvplane_cuda.h>' >header.c
    # shellcheck disable=SC2046
    $cc -std=c11 -pedantic -Wall -Wextra -Werror $(pkg-config --cflags kvplane_cuda) -fsyntax-only header.c
    foreign=$(nm -D --defined-only "$cuda_lib" | awk '{print $3}' | grep -v '^kvplane_cuda_' || true)
    [ -z "$foreign" ] || fail "visible beyond the API of libkvplane_cuda: $foreign"
    LD_LIBRARY_PATH=$(dirname "$cuda_lib") ./cuda_example "$work/none.sock" 0 2>message || grep -q 'cudaErrorInsufficientDriver\|cudaErrorNoDevice' message ||
        fail "the CUDA example: $(cat message)"
fi

# It runs, and says what is missing.
LD_LIBRARY_PATH=$(dirname "$lib")
export LD_LIBRARY_PATH
env -u KVPLANE_SOCKET ./example 2>message && fail "ran without a socket"
grep -q '^socket: ' message || fail "unhelpful: $(cat message)"

# The pages and completions that the program wrote.
for file in man/man1/kvplane.1 man/man1/kvplane-serve.1 man/man1/kvplane-sleep.1 \
    bash-completion/completions/kvplane zsh/site-functions/_kvplane fish/vendor_completions.d/kvplane.fish; do
    [ -s "$work/moved/share/$file" ] || fail "no share/$file"
done

# It works with the daemon that was installed with it.
program=$work/moved/bin/kvplane
"$program" serve --listen 127.0.0.1:0 --engine-socket "$work/engine.sock" --store-bytes 16MiB >ready 2>daemon.log &
daemon=$!
until_ok grep -q '^kvplane ready ' ready
url=$(sed -n 's/^kvplane ready //p' ready)
./example "$work/engine.sock" 3 >output || fail "the example: $?"
printf '0 of 4 blocks from the store\n4 of 4 blocks from the store\n4 of 4 blocks from the store\n' >wanted
cmp -s output wanted || fail "the example said: $(cat output)"

# It sleeps without a page of its memory left, here or in the daemon, and wakes.
maps() { cat "/proc/$engine/maps" "/proc/$daemon/maps" | grep -c 'memfd:kv_cache' || true; }
grown() { [ "$(wc -l <output)" -gt "$1" ]; }
stdbuf -oL ./example "$work/engine.sock" 1000000000 >output 2>message &
engine=$!
until_ok grown 10
[ "$(maps)" = 2 ] || fail "mapped $(maps) times"
"$program" sleep --level 2 --url "$url" >/dev/null || fail "sleep"
[ "$(maps)" = 0 ] || fail "still mapped $(maps) times"
"$program" wake --url "$url" >/dev/null || fail "wake"
until_ok grown "$(($(wc -l <output) + 10))"
[ "$(maps)" = 2 ] || fail "mapped $(maps) times"

# Without the daemon it goes on alone, and it finds the next one.
kill "$daemon"
wait "$daemon" || fail "the daemon ended with $?"
until_ok sh -c 'tail -n 1 output | grep -q "^0 of"'
"$program" serve --listen 127.0.0.1:0 --engine-socket "$work/engine.sock" --store-bytes 16MiB >ready 2>daemon.log &
daemon=$!
until_ok sh -c 'tail -n 1 output | grep -q "^4 of"'
kill -0 "$engine" || fail "the example ended: $(cat message)"
echo "install_example: ok"
