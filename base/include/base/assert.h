/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_ASSERT_H
#define BASE_ASSERT_H

/*
 * Assertions are for our own mistakes only, never for input, peers, hardware or allocation.
 * kvb_assert stays on in release builds: a cache that stops is better than one that serves wrong
 * bytes. No side effects inside.
 */
_Noreturn void kvb_assert_failed(const char *expression, const char *file, int line,
                                 const char *function);

#define kvb_assert(expression)                                                                     \
    ((expression) ? (void)0 : kvb_assert_failed(#expression, __FILE__, __LINE__, __func__))

#ifdef KVB_SLOW_ASSERTS
#define kvb_assert_slow(expression) kvb_assert(expression)
#else
#define kvb_assert_slow(expression) ((void)sizeof(expression))
#endif

#define KVB_UNREACHABLE(why) kvb_assert_failed("unreachable: " why, __FILE__, __LINE__, __func__)

#endif
