/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For requests: the body's JSON stays JSON half of the time, and half of the time Content-Length is
 * put right afterwards, so that what a body says is reached at all.
 */
#include "http_blanks.h"
#include "json_mutator.h"

#include <stdio.h>
#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

static uint8_t *find(uint8_t *data, size_t size, const char *what)
{
    return memmem(data, size, what, strlen(what));
}

static size_t put_length_right(uint8_t *data, size_t size, size_t max_size)
{
    char number[24];
    uint8_t *head_end = find(data, size, "\r\n\r\n");
    uint8_t *length =
        head_end == NULL ? NULL : find(data, (size_t)(head_end - data), "Content-Length: ");
    if (length == NULL) {
        return size;
    }
    length += strlen("Content-Length: ");
    size_t digits = 0, body = size - (size_t)(head_end + 4 - data);
    while (length + digits < head_end && length[digits] >= '0' && length[digits] <= '9') {
        digits++;
    }
    uint8_t *end = data + size;
    for (uint8_t *at = head_end; (at = memmem(at, (size_t)(end - at), "\0P", 2)) != NULL; at++) {
        body += FUZZ_BLANKS - 2;
    }
    size_t n = (size_t)snprintf(number, sizeof number, "%zu", body);
    if (size - digits + n > max_size) {
        return size;
    }
    memmove(length + n, length + digits, size - (size_t)(length + digits - data));
    memcpy(length, number, n);
    return size - digits + n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    size = fuzz_mutate_json(data, size, max_size, seed);
    return seed % 4 < 2 ? put_length_right(data, size, max_size) : size;
}
