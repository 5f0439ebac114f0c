/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head of an answer that is passed on, as an engine's server may send it: lines with their line
 * ends. First byte: how often the same is read with what was there before forgotten.
 *
 * What goes through is names and values that end no line, nothing of the connection itself, and one
 * length at most, which is believed only without another framing.
 */
#include "fuzz.h"
#include "proxy/fields.h"

static bool token(const char *name)
{
    return name[0] != '\0' && strpbrk(name, " \t\r\n:,;()<>@\"/[]?={}\\") == NULL;
}

static void judge(const struct kvp_fields *fields, const char *connection)
{
    kvb_assert(fields->n <= KVP_FIELDS_MAX && fields->len <= fields->cap);
    kvb_assert(fields->cap <= KVP_FIELDS_TEXT_MAX);
    kvb_assert(!(fields->has_length && fields->has_encoding));
    for (uint32_t i = 0; i < fields->n; i++) {
        const char *name = fields->text + fields->at[i].name;
        const char *value = fields->text + fields->at[i].value;
        kvb_assert(token(name) && strpbrk(value, "\r\n") == NULL);
        kvb_assert(!kvp_field_is_hop(name, strlen(name)));
        kvb_assert(!kvp_field_named(connection, name, strlen(name)));
    }
}

/* The value of the last Connection header, as a line has it. */
static void note_connection(const char *line, size_t len, char out[256])
{
    static const char name[] = "connection:";
    size_t at = sizeof name - 1;
    if (len <= at || strncasecmp(line, name, at) != 0) {
        return;
    }
    len = len - at < 255 ? len - at : 255;
    memcpy(out, line + at, len);
    out[len] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
}

static void read_head(struct kvp_fields *fields, const char *text, size_t size)
{
    char connection[256] = "";
    kvp_fields_reset(fields);
    while (size > 0) {
        const char *end = memchr(text, '\n', size);
        size_t len = end == NULL ? size : (size_t)(end + 1 - text);
        char *line = malloc(len); /* exactly: one byte too many is seen */
        kvb_assert(line != NULL);
        memcpy(line, text, len);
        note_connection(line, len, connection);
        kvp_fields_add(fields, line, len);
        free(line);
        text += len;
        size -= len;
    }
    bool whole = !fields->bad;
    kvp_fields_finish(fields, "http://engine:8000");
    if (whole) {
        judge(fields, connection);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvp_fields fields = {.text = NULL};
    if (size == 0) {
        return 0;
    }
    for (unsigned i = 0; i <= data[0] % 2u; i++) {
        read_head(&fields, (const char *)data + 1, size - 1);
    }
    kvp_fields_cleanup(&fields);
    return 0;
}
