/* SPDX-License-Identifier: Apache-2.0 */
#include "config_values.h"

#include "base/assert.h"
#include "base/utf8.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit byte_units[] = {
    {"", 1},
    {"B", 1},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
    {"KB", 1ull << 10},
    {"MB", 1ull << 20},
    {"GB", 1ull << 30},
    {"TB", 1ull << 40},
    {NULL, 0},
};
static const struct unit time_units[] = {
    {"ms", 1}, {"", 1000}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000u}, {NULL, 0},
};

static const char *skip_blanks(const char *text)
{
    while (isspace((unsigned char)*text)) {
        text++;
    }
    return text;
}

bool kvp_trim(const char *text, char *out, size_t cap)
{
    text = skip_blanks(text);
    size_t len = strlen(text);
    while (len > 0 && isspace((unsigned char)text[len - 1])) {
        len--;
    }
    if (len >= cap) {
        return false;
    }
    memcpy(out, text, len);
    out[len] = '\0';
    return true;
}

const char *kvp_next_item(const char *list, char *out, size_t cap)
{
    size_t len = strcspn(list, ",");
    const char *next = list[len] == ',' ? list + len + 1 : list + len;
    list = skip_blanks(list);
    len = strcspn(list, ",");
    while (len > 0 && isspace((unsigned char)list[len - 1])) {
        len--;
    }
    if (len >= cap) {
        len = 0;
    }
    memcpy(out, list, len);
    out[len] = '\0';
    return next;
}

/* Digits, nothing else before `end`; false also on overflow. */
static bool parse_digits(const char *text, uint64_t *number_p, const char **end_p)
{
    uint64_t number = 0;
    const char *at = text;
    for (; isdigit((unsigned char)*at); at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (number > (UINT64_MAX - digit) / 10) {
            return false;
        }
        number = number * 10 + digit;
    }
    *number_p = number;
    *end_p = at;
    return at != text;
}

static bool parse_with_unit(const char *text, const struct unit *units, uint64_t *number_p)
{
    uint64_t number;
    const char *end;
    if (!parse_digits(text, &number, &end)) {
        return false;
    }
    end = skip_blanks(end);
    for (const struct unit *unit = units; unit->name != NULL; unit++) {
        if (strcasecmp(end, unit->name) == 0) {
            if (number > UINT64_MAX / unit->factor) {
                return false;
            }
            *number_p = number * unit->factor;
            return true;
        }
    }
    return false;
}

bool kvp_parse_count(const char *text, uint64_t *number_p)
{
    const char *end;
    return parse_digits(text, number_p, &end) && *end == '\0';
}

bool kvp_parse_bytes(const char *text, uint64_t *bytes_p)
{
    return parse_with_unit(text, byte_units, bytes_p);
}

bool kvp_parse_time(const char *text, uint64_t *ms_p)
{
    return parse_with_unit(text, time_units, ms_p);
}

bool kvp_parse_switch(const char *text, bool *on_p)
{
    static const char *const yes[] = {"true", "1", "yes", "on"};
    static const char *const no[] = {"false", "0", "no", "off"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *on_p = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool parse_number(enum kvp_value_type type, const char *text, uint64_t *number_p)
{
    switch (type) {
    case KVP_VALUE_BYTES:
        return kvp_parse_bytes(text, number_p);
    case KVP_VALUE_TIME:
        return kvp_parse_time(text, number_p);
    case KVP_VALUE_COUNT:
        return kvp_parse_count(text, number_p);
    case KVP_VALUE_TEXT:
    case KVP_VALUE_LIST:
    case KVP_VALUE_CHOICE:
    case KVP_VALUE_SWITCH:
        break;
    }
    KVB_UNREACHABLE("not a number");
}

/* limits are ours: "least most". */
static void split_limits(const char *limits, char least[32], char most[32])
{
    int n = sscanf(limits, "%31s %31s", least, most);
    kvb_assert(n == 2);
}

void kvp_value_allowed(enum kvp_value_type type, const char *limits, char *out, size_t cap)
{
    char least[32];
    char most[32];
    switch (type) {
    case KVP_VALUE_TEXT:
        (void)snprintf(out, cap, "text");
        break;
    case KVP_VALUE_LIST:
        (void)snprintf(out, cap, "text, repeatable");
        break;
    case KVP_VALUE_SWITCH:
        (void)snprintf(out, cap, "true or false");
        break;
    case KVP_VALUE_CHOICE:
        (void)snprintf(out, cap, "one of: %s", limits);
        break;
    case KVP_VALUE_BYTES:
    case KVP_VALUE_COUNT:
    case KVP_VALUE_TIME:
        split_limits(limits, least, most);
        (void)snprintf(out, cap, "%s to %s", least, most);
        break;
    }
}

const char *kvp_value_type_text(enum kvp_value_type type)
{
    static const char *const texts[] = {
        [KVP_VALUE_TEXT] = "TEXT",           [KVP_VALUE_LIST] = "TEXT",
        [KVP_VALUE_CHOICE] = "WORD",         [KVP_VALUE_BYTES] = "BYTES",
        [KVP_VALUE_COUNT] = "COUNT",         [KVP_VALUE_TIME] = "TIME",
        [KVP_VALUE_SWITCH] = "[true|false]",
    };
    return texts[type];
}

static bool is_word_of(const char *words, const char *text)
{
    size_t len = strlen(text);
    for (const char *at = words; *at != '\0';) {
        size_t n = strcspn(at, " ");
        if (n == len && strncmp(at, text, n) == 0) {
            return true;
        }
        at += n;
        at = skip_blanks(at);
    }
    return false;
}

static bool within(enum kvp_value_type type, const char *limits, uint64_t number)
{
    char least_text[32];
    char most_text[32];
    uint64_t least = 0;
    uint64_t most = 0;
    split_limits(limits, least_text, most_text);
    bool ours = parse_number(type, least_text, &least) && parse_number(type, most_text, &most);
    kvb_assert(ours);
    return number >= least && number <= most;
}

bool kvp_value_parse(enum kvp_value_type type, const char *limits, const char *text,
                     union kvp_value *value_p, char *allowed, size_t allowed_cap)
{
    bool ok = false;
    switch (type) {
    case KVP_VALUE_LIST:
    case KVP_VALUE_TEXT: /* or `config show` could not say it */
        ok = kvb_utf8_printable(text, strlen(text));
        break;
    case KVP_VALUE_CHOICE:
        ok = is_word_of(limits, text);
        break;
    case KVP_VALUE_SWITCH:
        ok = kvp_parse_switch(text, &value_p->on);
        break;
    case KVP_VALUE_BYTES:
    case KVP_VALUE_COUNT:
    case KVP_VALUE_TIME:
        ok = parse_number(type, text, &value_p->number) && within(type, limits, value_p->number);
        break;
    }
    if (!ok) {
        kvp_value_allowed(type, limits, allowed, allowed_cap);
    }
    return ok;
}
