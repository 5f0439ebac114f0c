/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONFIG_VALUES_H
#define SERVER_CONFIG_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The types of config values: how they are written and what they are limited by. */
enum kvp_value_type {
    KVP_VALUE_TEXT,
    KVP_VALUE_LIST, /* text: items separated by commas; of a repeated option they add up */
    KVP_VALUE_CHOICE,
    KVP_VALUE_BYTES,
    KVP_VALUE_COUNT,
    KVP_VALUE_TIME,
    KVP_VALUE_SWITCH,
};

/* The types of the fields. */
#define KVP_CONFIG_TEXT   char *
#define KVP_CONFIG_LIST   char *
#define KVP_CONFIG_CHOICE char *
#define KVP_CONFIG_BYTES  uint64_t
#define KVP_CONFIG_COUNT  uint64_t
#define KVP_CONFIG_TIME   uint64_t /* ms */
#define KVP_CONFIG_SWITCH bool

#define KVP_CONFIG_ERROR_MAX 512

union kvp_value {
    uint64_t number; /* BYTES, COUNT; TIME in ms */
    bool on;
};

/* limits: of a CHOICE its words, else "least most" in the type's own notation, or "". False:
 * allowed_p says what would be allowed. */
bool kvp_value_parse(enum kvp_value_type type, const char *limits, const char *text,
                     union kvp_value *value_p, char *allowed, size_t allowed_cap);
void kvp_value_allowed(enum kvp_value_type type, const char *limits, char *out, size_t cap);
const char *kvp_value_type_text(enum kvp_value_type type);

bool kvp_parse_count(const char *text, uint64_t *number_p);
bool kvp_parse_bytes(const char *text, uint64_t *bytes_p);
bool kvp_parse_time(const char *text, uint64_t *ms_p);
bool kvp_parse_switch(const char *text, bool *on_p);

/* Copies without blanks around; false: it does not fit. */
bool kvp_trim(const char *text, char *out, size_t cap);
/* The next item of a comma-separated list, trimmed ("" if it does not fit), and where the list goes
 * on. */
const char *kvp_next_item(const char *list, char *out, size_t cap);

#endif
