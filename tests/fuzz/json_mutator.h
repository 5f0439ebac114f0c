/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_JSON_MUTATOR_H
#define TESTS_JSON_MUTATOR_H

#include <stddef.h>
#include <stdint.h>

/* As LLVMFuzzerCustomMutator: half of the time one value of one of the input's JSON objects is
 * changed and it stays JSON, so that what is behind the syntax is reached; else libFuzzer's own. */
size_t fuzz_mutate_json(uint8_t *data, size_t size, size_t max_size, unsigned seed);

#endif
