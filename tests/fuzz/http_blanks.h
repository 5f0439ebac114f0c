/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_HTTP_BLANKS_H
#define TESTS_FUZZ_HTTP_BLANKS_H

/* What a NUL and a P in an input of fuzz_http stand for. */
#define FUZZ_BLANKS 66000u

#endif
