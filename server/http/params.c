/* SPDX-License-Identifier: Apache-2.0 */
#include "http/params.h"

#include "base/assert.h"
#include "base/percent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum kind {
    LEVEL,
    MODE,
    BOOL,
    TEXT,
    TAGS,
    NAME,
    ID,
    KEY,
    COUNT,
    NUMBER,
    SECONDS,
    PIN,
    PATTERN,
    QUOTA,
    LIMIT,
    CURSOR
};

static const struct {
    const char *name;
    enum kind kind;
    size_t offset;
} table[KVP_PARAM_COUNT] = {
#define X(name_, kind_) [KVP_PARAM_##name_] = {#name_, kind_, offsetof(struct kvp_params, name_)},
    KVP_PARAMS(X)
#undef X
};

#define LEVEL_MAX 2

static const struct {
    const char *text;
    enum kvp_pause_kind mode;
} modes[] = {
    {"abort", KVP_MODE_ABORT},     {"wait", KVP_MODE_WAIT},     {"keep", KVP_MODE_KEEP},
    {"retract", KVP_MODE_RETRACT}, {"in_place", KVP_MODE_KEEP},
};

static const struct {
    const char *text;
    bool value;
} booleans[] = {
    {"true", true},   {"1", true},  {"on", true},   {"yes", true}, {"t", true},  {"y", true},
    {"false", false}, {"0", false}, {"off", false}, {"no", false}, {"f", false}, {"n", false},
};

const char *kvp_param_name(enum kvp_param which)
{
    return table[which].name;
}

static kvb_status_t refuse(struct kvp_param_error *error, const char *where, const char *name,
                           const char *message)
{
    snprintf(error->param, sizeof error->param, "%s%s%s", where, *name != '\0' ? "." : "", name);
    snprintf(error->message, sizeof error->message, "%s: %s", error->param, message);
    return KVB_ERR_INVALID;
}

/* Text that may stand in a log line, a header or a JSON answer: UTF-8 without control characters.
 */
static bool printable(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            return false;
        }
    }
    json_t *json = json_string(text); /* NULL: not UTF-8 */
    json_decref(json);
    return json != NULL;
}

static const char *read_level(struct kvp_params *params, const char *text)
{
    if (text[0] < '0' || text[0] > '0' + LEVEL_MAX || text[1] != '\0') {
        return "must be 0, 1 or 2";
    }
    params->level = (uint32_t)(text[0] - '0');
    return NULL;
}

static const char *read_mode(struct kvp_params *params, const char *text)
{
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(text, modes[i].text) == 0) {
            params->mode = modes[i].mode;
            return NULL;
        }
    }
    return "must be abort, wait or keep (or retract, in_place)";
}

static const char *read_bool(bool *value_p, const char *text)
{
    for (size_t i = 0; i < sizeof booleans / sizeof booleans[0]; i++) {
        if (strcasecmp(text, booleans[i].text) == 0) {
            *value_p = booleans[i].value;
            return NULL;
        }
    }
    return "must be true or false";
}

static const char *read_text(char *out, const char *text)
{
    if (*text == '\0') {
        return "must not be empty";
    }
    if (strlen(text) >= KVB_WEIGHTS_NAME_MAX) {
        return "must have at most 255 bytes";
    }
    if (!printable(text)) {
        return "must be UTF-8 without control characters";
    }
    strcpy(out, text);
    return NULL;
}

static const char *read_tag(struct kvp_params *params, const char *text)
{
    if (strlen(text) >= KVB_NAME_MAX) {
        return "a tag has at most 63 bytes";
    }
    if (!printable(text)) {
        return "must be UTF-8 without control characters";
    }
    for (uint32_t i = 0; i < params->ntags; i++) {
        if (strcmp(params->tags[i], text) == 0) {
            return NULL;
        }
    }
    if (params->ntags == KVB_TAGS_MAX) {
        return "at most 8 different tags";
    }
    strcpy(params->tags[params->ntags++], text);
    return NULL;
}

static const char *read_name(char *out, const char *text)
{
    if (!kvb_name_valid(text)) {
        return "must be 1 to 63 characters of A-Z a-z 0-9 . _ -";
    }
    strcpy(out, text);
    return NULL;
}

bool kvp_hex_read(const char *text, uint8_t *out, size_t cap, size_t *len_p)
{
    size_t len = strlen(text);
    if (len == 0 || len % 2 != 0 || len / 2 > cap ||
        text[strspn(text, "0123456789abcdefABCDEF")] != '\0') {
        return false;
    }
    for (size_t i = 0; i < len / 2; i++) {
        const char digits[] = {text[2 * i], text[2 * i + 1], '\0'};
        out[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    *len_p = len / 2;
    return true;
}

static const char *read_id(struct kvb_id *id, const char *text)
{
    uint8_t bytes[16];
    size_t len;
    if (!kvp_hex_read(text, bytes, sizeof bytes, &len) || len != sizeof bytes) {
        return "must be 32 hex digits";
    }
    *id = (struct kvb_id){0, 0};
    for (size_t i = 0; i < 8; i++) {
        id->hi = id->hi << 8 | bytes[i];
        id->lo = id->lo << 8 | bytes[8 + i];
    }
    return NULL;
}

static const char *read_key(struct kvp_params *params, const char *text)
{
    size_t len;
    if (!kvp_hex_read(text, params->key.bytes, sizeof params->key.bytes, &len)) {
        return "must be the key's bytes, 1 to 512, as hex digits";
    }
    params->key.len = (uint16_t)len;
    return NULL;
}

static const char *read_count(uint32_t *number, const char *text)
{
    size_t len = strlen(text);
    if (len == 0 || len > 9 || text[strspn(text, "0123456789")] != '\0') {
        return "must be a whole number";
    }
    *number = (uint32_t)strtoul(text, NULL, 10);
    return NULL;
}

/* Decimal digits; a number that overflows is the largest. */
static const char *read_number(uint64_t *number, const char *text)
{
    if (*text == '\0' || text[strspn(text, "0123456789")] != '\0') {
        return "must be a whole number";
    }
    *number = strtoull(text, NULL, 10);
    return NULL;
}

#define SECONDS_MAX 3600.0

/* Clients write 30 and 30.0. */
static const char *read_seconds(uint32_t *ms, const char *text)
{
    size_t len = strlen(text);
    double seconds = SECONDS_MAX + 1;
    if (len > 0 && len < 16 && text[strspn(text, "0123456789.")] == '\0') {
        char *end;
        seconds = strtod(text, &end);
        seconds = *end == '\0' ? seconds : SECONDS_MAX + 1;
    }
    if (!(seconds <= SECONDS_MAX)) {
        return "must be a number of seconds, at most 3600";
    }
    *ms = (uint32_t)(seconds * 1000);
    return NULL;
}

/* Bytes that mean something to the matcher are taken as they are. */
static const char *read_pattern(struct kvp_params *params, const char *text)
{
    size_t len = 0;
    while (*text != '\0') {
        uint8_t byte = (uint8_t)*text;
        bool wild = byte == '*' || byte == '?';
        size_t n;
        const char digits[] = {text[0], wild ? '\0' : text[1], '\0'};
        if (!wild && !kvp_hex_read(digits, &byte, 1, &n)) {
            return "must be pairs of hex digits, * and ?";
        }
        bool special = !wild && strchr("*?\\", byte) != NULL && byte != 0;
        if (len + special + 1 > sizeof params->pattern.bytes) {
            return "is too long";
        }
        if (special) {
            params->pattern.bytes[len++] = '\\';
        }
        params->pattern.bytes[len++] = byte;
        text += wild ? 1 : 2;
    }
    params->pattern.len = (uint16_t)len;
    return len > 0 ? NULL : "must not be empty";
}

static const char *read_pin(enum kvs_pin *pin, const char *text)
{
    static const char *const words[] = {
        [KVS_PIN_NONE] = "none", [KVS_PIN_SOFT] = "soft", [KVS_PIN_HARD] = "hard"};
    for (uint32_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *pin = (enum kvs_pin)i;
            return NULL;
        }
    }
    return "must be none, soft or hard";
}

static const char *read_quota(uint64_t *bytes, const char *text)
{
    if (strcmp(text, "none") == 0) {
        *bytes = UINT64_MAX;
        return NULL;
    }
    if (*text == '\0' || strlen(text) > 18 || text[strspn(text, "0123456789")] != '\0') {
        return "must be a number of bytes, or none";
    }
    return read_number(bytes, text);
}

static const char *read_limit(uint32_t *limit, const char *text)
{
    uint32_t number;
    if (read_count(&number, text) != NULL || number == 0 || number > KVP_LIMIT_MAX) {
        return "must be a whole number from 1 to 1000";
    }
    *limit = number;
    return NULL;
}

static const char *read_cursor(char *out, const char *text)
{
    static const char safe[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/:";
    size_t len = strlen(text);
    if (len == 0 || len >= KVP_CURSOR_MAX || text[strspn(text, safe)] != '\0') {
        return "must be what this list gave as next";
    }
    strcpy(out, text);
    return NULL;
}

/* One value as text; a message if it does not fit. */
static const char *read_value(struct kvp_params *params, enum kvp_param which, const char *text)
{
    void *field = (char *)params + table[which].offset;
    const char *wrong = NULL;

    switch (table[which].kind) {
    case LEVEL:
        wrong = read_level(params, text);
        break;
    case MODE:
        wrong = read_mode(params, text);
        break;
    case BOOL:
        wrong = read_bool(field, text);
        break;
    case TEXT:
        wrong = read_text(field, text);
        break;
    case TAGS:
        wrong = read_tag(params, text);
        break;
    case NAME:
        wrong = read_name(field, text);
        break;
    case ID:
        wrong = read_id(field, text);
        break;
    case KEY:
        wrong = read_key(params, text);
        break;
    case COUNT:
        wrong = read_count(field, text);
        break;
    case NUMBER:
        wrong = read_number(field, text);
        break;
    case SECONDS:
        wrong = read_seconds(field, text);
        break;
    case PIN:
        wrong = read_pin(field, text);
        break;
    case PATTERN:
        wrong = read_pattern(params, text);
        break;
    case QUOTA:
        wrong = read_quota(field, text);
        break;
    case LIMIT:
        wrong = read_limit(field, text);
        break;
    case CURSOR:
        wrong = read_cursor(field, text);
        break;
    }
    if (wrong == NULL) {
        params->given |= 1u << which;
    }
    return wrong;
}

/* ---- query ---- */

/* Longest decoded value of interest; a longer one is refused if its parameter is read. */
#define VALUE_MAX (2 * KVB_KEY_MAX + 1)

struct pair {
    char name[64];
    char value[VALUE_MAX];
    bool too_long; /* the value */
};

/* Decodes the next NAME[=VALUE] of the query. INVALID: a bad escape. */
static kvb_status_t next_pair(const char **query_p, struct pair *pair)
{
    const char *text = *query_p;
    size_t len = strcspn(text, "&");
    const char *equals = memchr(text, '=', len);
    size_t name_len = equals != NULL ? (size_t)(equals - text) : len;
    const char *value = equals != NULL ? equals + 1 : text + len;
    size_t value_len = (size_t)(text + len - value);

    *query_p = text + len + (text[len] == '&' ? 1 : 0);
    kvb_status_t status = kvb_percent_decode(text, name_len, true, pair->name, sizeof pair->name);
    if (status == KVB_ERR_TOO_LARGE) { /* no parameter of ours is that long */
        pair->name[0] = '\0';
        status = KVB_OK;
    }
    if (status != KVB_OK) {
        return status;
    }
    status = kvb_percent_decode(value, value_len, true, pair->value, sizeof pair->value);
    pair->too_long = status == KVB_ERR_TOO_LARGE;
    return status == KVB_ERR_INVALID ? status : KVB_OK;
}

/* KVP_PARAM_COUNT stands for `instance`. */
static bool find_name(uint32_t wanted, const char *name, uint32_t *which_p)
{
    for (uint32_t i = 0; i <= KVP_PARAM_COUNT; i++) {
        const char *known = i < KVP_PARAM_COUNT ? table[i].name : "instance";
        if ((wanted & (1u << i)) != 0 && strcmp(name, known) == 0) {
            *which_p = i;
            return true;
        }
    }
    return false;
}

/* Of a repeated scalar only the last occurrence is looked at; `last` remembers where it is. */
static kvb_status_t read_query(uint32_t wanted, const char *query, struct kvp_params *params,
                               char instance[KVB_NAME_MAX], struct kvp_param_error *error)
{
    const char *last[KVP_PARAM_COUNT + 1] = {NULL};
    struct pair pair;
    uint32_t which;

    for (const char *at = query; *at != '\0';) {
        const char *begin = at;
        if (next_pair(&at, &pair) != KVB_OK) {
            return refuse(error, "query", "",
                          "a '%' must be followed by two hex digits and must not code a NUL");
        }
        if (find_name(wanted, pair.name, &which)) {
            last[which] = begin;
        }
    }
    for (const char *at = query; *at != '\0';) {
        const char *begin = at;
        const char *wrong;
        if (next_pair(&at, &pair) != KVB_OK || !find_name(wanted, pair.name, &which)) {
            continue;
        }
        if (which < KVP_PARAM_COUNT && table[which].kind != TAGS && last[which] != begin) {
            continue;
        }
        if (pair.too_long) {
            wrong = "too long";
        } else if (which < KVP_PARAM_COUNT) {
            wrong = read_value(params, which, pair.value);
        } else if (last[which] != begin) {
            continue;
        } else {
            bool every = (wanted & (1u << KVP_PARAM_all_or_nothing)) != 0 &&
                         strcmp(pair.value, KVP_EVERY_INSTANCE) == 0;
            wrong = every || kvb_name_valid(pair.value)
                        ? NULL
                        : "must be a name: 1 to 63 characters of A-Z a-z 0-9 . _ -";
            if (wrong == NULL) {
                strcpy(instance, pair.value);
            }
        }
        if (wrong != NULL) {
            return refuse(error, "query", pair.name, wrong);
        }
    }
    return KVB_OK;
}

/* ---- body ---- */

/* A JSON scalar as the text that the same value has in a query; NULL: not a scalar of that kind. */
static const char *scalar_text(const json_t *value, enum kind kind, char number[24])
{
    if (json_is_string(value)) {
        return json_string_value(value);
    }
    if (json_is_boolean(value) && kind == BOOL) {
        return json_is_true(value) ? "true" : "false";
    }
    if (json_is_real(value) && kind == SECONDS) {
        snprintf(number, 24, "%.3f", json_real_value(value));
        return number;
    }
    if (json_is_integer(value) &&
        (kind == LEVEL || kind == BOOL || kind == TEXT || kind == COUNT || kind == NUMBER ||
         kind == SECONDS || kind == LIMIT || kind == QUOTA)) { /* versions are often numbers */
        snprintf(number, 24, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return number;
    }
    return NULL;
}

static const char *wrong_type(enum kind kind)
{
    switch (kind) {
    case LEVEL:
        return "must be 0, 1 or 2";
    case BOOL:
        return "must be true or false";
    case TAGS:
        return "must be a list of strings or null";
    case MODE:
        return "must be abort, wait or keep";
    case COUNT:
    case NUMBER:
    case LIMIT:
        return "must be a whole number";
    case SECONDS:
        return "must be a number of seconds";
    case QUOTA:
        return "must be a number of bytes, or none";
    case TEXT:
    case NAME:
    case ID:
    case KEY:
    case PIN:
    case PATTERN:
    case CURSOR:
        return "must be a string";
    }
    KVB_UNREACHABLE("kind");
}

static const char *read_member(struct kvp_params *params, enum kvp_param which, const json_t *value)
{
    enum kind kind = table[which].kind;
    char number[24];

    if (kind == TAGS && json_is_array(value)) {
        params->given |= 1u << which; /* an empty list is given too: it wakes nothing */
        for (size_t i = 0; i < json_array_size(value); i++) {
            const json_t *tag = json_array_get(value, i);
            const char *wrong = json_is_string(tag)
                                    ? read_value(params, which, json_string_value(tag))
                                    : wrong_type(kind);
            if (wrong != NULL) {
                return wrong;
            }
        }
        return NULL;
    }
    const char *text = scalar_text(value, kind, number);
    return text != NULL ? read_value(params, which, text) : wrong_type(kind);
}

static kvb_status_t read_body(uint32_t wanted, const json_t *body, struct kvp_params *params,
                              struct kvp_param_error *error)
{
    for (uint32_t i = 0; i < KVP_PARAM_COUNT; i++) {
        const json_t *value = json_object_get(body, table[i].name);
        if ((wanted & (1u << i)) == 0 || value == NULL || json_is_null(value)) {
            continue;
        }
        const char *wrong = read_member(params, i, value);
        if (wrong != NULL) {
            return refuse(error, "body", table[i].name, wrong);
        }
    }
    return KVB_OK;
}

kvb_status_t kvp_params_read(const struct kvp_route *route, const char *query, const json_t *body,
                             struct kvp_params *params_p, char instance[KVB_NAME_MAX],
                             struct kvp_param_error *error_p)
{
    struct kvp_params params = {0};
    char name[KVB_NAME_MAX] = "";
    uint32_t wanted = route->params;
    kvb_status_t status = KVB_OK;

    if (query != NULL) {
        status = read_query(wanted, query, &params, name, error_p);
    }
    if (status == KVB_OK && body != NULL) {
        status = read_body(wanted & ~params.given, body, &params, error_p);
    }
    if (status == KVB_OK) {
        *params_p = params;
        strcpy(instance, name);
    }
    return status;
}
