/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/fields.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LENGTH_DIGITS_MAX 18 /* always fits 64 bits */

static bool same(const char *name, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp(name, word, len) == 0;
}

bool kvp_field_is_hop(const char *name, size_t len)
{
    static const char *const words[] = {"Connection",    "Keep-Alive",        "TE",
                                        "Trailer",       "Transfer-Encoding", "Upgrade",
                                        "Content-Length"};
    if (len >= 6 && strncasecmp(name, "Proxy-", 6) == 0) {
        return true;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (same(name, len, words[i])) {
            return true;
        }
    }
    return false;
}

bool kvp_field_named(const char *connection, const char *name, size_t len)
{
    while (*connection != '\0') {
        connection += strspn(connection, " \t,");
        size_t n = strcspn(connection, ",");
        size_t word = n;
        while (word > 0 && (connection[word - 1] == ' ' || connection[word - 1] == '\t')) {
            word--;
        }
        if (word > 0 && word == len && strncasecmp(connection, name, len) == 0) {
            return true;
        }
        connection += n;
    }
    return false;
}

/* ---- the head of an answer ---- */

void kvp_fields_reset(struct kvp_fields *fields)
{
    fields->len = 0;
    fields->n = 0;
    fields->length = 0;
    fields->has_length = fields->has_encoding = fields->bad = false;
}

void kvp_fields_cleanup(struct kvp_fields *fields)
{
    free(fields->text);
    fields->text = NULL;
    fields->cap = 0;
}

static bool grow(struct kvp_fields *fields, size_t more)
{
    size_t cap = fields->cap > 0 ? fields->cap : 1024;

    while (cap < fields->len + more) {
        cap *= 2;
    }
    if (cap == fields->cap) {
        return true;
    }
    char *text = cap > KVP_FIELDS_TEXT_MAX ? NULL : realloc(fields->text, cap);
    if (text == NULL) {
        return false;
    }
    fields->text = text;
    fields->cap = cap;
    return true;
}

static uint32_t put(struct kvp_fields *fields, const char *from, size_t len)
{
    uint32_t at = (uint32_t)fields->len;

    memcpy(fields->text + at, from, len);
    fields->text[at + len] = '\0';
    fields->len += len + 1;
    return at;
}

static void read_length(struct kvp_fields *fields, const char *value)
{
    size_t digits = strspn(value, "0123456789");
    uint64_t length = 0;

    if (digits == 0 || digits > LENGTH_DIGITS_MAX || value[digits] != '\0') {
        fields->bad = true;
        return;
    }
    for (size_t i = 0; i < digits; i++) {
        length = length * 10 + (uint64_t)(value[i] - '0');
    }
    fields->bad = fields->bad || (fields->has_length && fields->length != length);
    fields->has_length = true;
    fields->length = length;
}

/* What a client must not be given: it might be the end of a line to it. */
static bool has_controls(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (((unsigned char)text[i] < ' ' && text[i] != '\t') || text[i] == 0x7f) {
            return true;
        }
    }
    return false;
}

void kvp_fields_add(struct kvp_fields *fields, const char *line, size_t len)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    while (len > 0 && strchr(" \t\r\n", line[len - 1]) != NULL && line[len - 1] != '\0') {
        len--;
    }
    const char *colon = memchr(line, ':', len);
    size_t name_len = colon != NULL ? (size_t)(colon - line) : 0;
    if (name_len == 0 || fields->n == KVP_FIELDS_MAX || has_controls(line, len) ||
        !grow(fields, len + 2)) {
        fields->bad = true; /* also a line that goes on with the one before it */
        return;
    }
    const char *value = colon + 1;
    while (value < line + len && (*value == ' ' || *value == '\t')) {
        value++;
    }
    uint32_t name_at = put(fields, line, name_len);
    uint32_t value_at = put(fields, value, (size_t)(line + len - value));
    for (char *tab = fields->text + value_at; (tab = strchr(tab, '\t')) != NULL;) {
        *tab = ' '; /* the same to HTTP, and libmicrohttpd takes no tabs */
    }
    if (fields->text[name_at + strspn(fields->text + name_at, token)] != '\0') {
        fields->bad = true;
        return;
    }
    fields->at[fields->n].name = name_at;
    fields->at[fields->n].value = value_at;
    fields->n++;
    if (same(line, name_len, "Content-Length")) {
        read_length(fields, fields->text + value_at);
    }
    fields->has_encoding = fields->has_encoding || same(line, name_len, "Transfer-Encoding");
}

static bool named(const struct kvp_fields *fields, uint32_t nfields, const char *name)
{
    for (uint32_t i = 0; i < nfields; i++) {
        if (strcasecmp(fields->text + fields->at[i].name, "Connection") == 0 &&
            kvp_field_named(fields->text + fields->at[i].value, name, strlen(name))) {
            return true;
        }
    }
    return false;
}

void kvp_fields_finish(struct kvp_fields *fields, const char *server)
{
    bool keep[KVP_FIELDS_MAX];
    uint32_t kept = 0;
    size_t len = strlen(server);

    for (uint32_t i = 0; i < fields->n; i++) {
        const char *name = fields->text + fields->at[i].name;
        const char *value = fields->text + fields->at[i].value;
        keep[i] = !kvp_field_is_hop(name, strlen(name)) && !named(fields, fields->n, name);
        bool place = strcasecmp(name, "Location") == 0 || strcasecmp(name, "Content-Location") == 0;
        if (place && strncasecmp(value, server, len) == 0 && value[len] == '/') {
            fields->at[i].value += (uint32_t)len;
        }
    }
    for (uint32_t i = 0; i < fields->n; i++) {
        if (keep[i]) {
            fields->at[kept++] = fields->at[i];
        }
    }
    fields->n = kept;
    fields->has_length = fields->has_length && !fields->has_encoding;
}
