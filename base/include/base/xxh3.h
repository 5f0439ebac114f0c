/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_XXH3_H
#define BASE_XXH3_H

/*
 * XXH3 over the bytes of values, with the widest vectors that the processor has: the library
 * chooses when it runs (four times as fast as its portable functions with AVX-512). Include this
 * where values are hashed, and xxhash.h for keys. The state's type is known, it wants 64-byte
 * alignment.
 */
#define XXH_STATIC_LINKING_ONLY
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#endif
