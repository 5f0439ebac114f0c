/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the well-formed UTF-8 sequence (RFC 3629) at the start of text: 1 to 4, or 0 if there is
 * none. len > 0. */
size_t kvb_utf8_sequence(const char *text, size_t len);

/* True if all of text is well-formed UTF-8 without control characters: fit for logs, labels and
 * JSON. */
bool kvb_utf8_printable(const char *text, size_t len);

/* Puts a `?` over each byte of a control character, C1 too, and over what is no well-formed UTF-8:
 * what a terminal is shown of a text that somebody else wrote, or that was cut. */
void kvb_utf8_clean(char *text);

#endif
