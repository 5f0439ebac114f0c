/* SPDX-License-Identifier: Apache-2.0 */
#include "http/framing.h"

#include <string.h>
#include <strings.h>

#define LENGTH_DIGITS_MAX 18 /* always fits 64 bits */

static void read_length(struct kvp_framing *framing, const char *value)
{
    size_t digits = value != NULL ? strspn(value, "0123456789") : 0;

    framing->lengths++;
    framing->length = 0;
    if (digits == 0 || digits > LENGTH_DIGITS_MAX || value[digits] != '\0') {
        framing->bad_length = true;
        return;
    }
    for (size_t i = 0; i < digits; i++) {
        framing->length = framing->length * 10 + (uint64_t)(value[i] - '0');
    }
}

/* RFC 9110, 5.6.2 */
static const char token[] = "!#$%&'*+-.^_`|~0123456789"
                            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/* Of the line ends libmicrohttpd has made NULs. */
static bool only_blank(const char *from, const char *to)
{
    while (from < to &&
           (*from == '\0' || *from == ' ' || *from == '\t' || *from == '\r' || *from == '\n')) {
        from++;
    }
    return from == to;
}

static bool has_controls(const char *value)
{
    for (; *value != '\0'; value++) {
        if (((unsigned char)*value < ' ' && *value != '\t') || *value == 0x7f) {
            return true;
        }
    }
    return false;
}

/* Is [name, value's end) where it must be, and nothing before it that was not read? */
static bool follows(struct kvp_framing *framing, const char *name, const char *value)
{
    const char *from = framing->at;

    if (name < from || value < name || value >= framing->end) {
        return false; /* joined of several lines, elsewhere */
    }
    framing->at = value + strlen(value);
    return only_blank(from, name) && only_blank(name + strlen(name), value) && !has_controls(value);
}

static enum MHD_Result read_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    struct kvp_framing *framing = arg;

    (void)kind;
    framing->headers++;
    framing->hidden |= value == NULL || !follows(framing, name, value);
    framing->bad_name |= name[0] == '\0' || name[strspn(name, token)] != '\0';
    if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0) {
        read_length(framing, value);
    } else if (strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0) {
        framing->hosts++;
    } else if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
        framing->encodings++;
        framing->bad_encoding |= value == NULL || strcasecmp(value, "chunked") != 0;
    }
    return MHD_YES;
}

void kvp_framing_read(struct MHD_Connection *connection, const char *method,
                      const char *http_version, struct kvp_framing *framing_p)
{
    const union MHD_ConnectionInfo *size =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);

    *framing_p = (struct kvp_framing){.at = http_version + strlen(http_version)};
    framing_p->old = strcmp(http_version, MHD_HTTP_VERSION_1_1) != 0;
    framing_p->size = size != NULL ? size->header_size : 0;
    framing_p->end = method + framing_p->size;
    MHD_get_connection_values(connection, MHD_HEADER_KIND, read_header, framing_p);
    framing_p->hidden |= !only_blank(framing_p->at, framing_p->end);
}

const char *kvp_framing_ambiguous(const struct kvp_framing *framing, const char *http_version)
{
    if (framing->lengths > 0 && framing->encodings > 0) {
        return "Content-Length and Transfer-Encoding in one request";
    }
    if (framing->lengths > 1 || framing->encodings > 1) {
        return "the length of the body is given twice";
    }
    if (framing->bad_length) {
        return "Content-Length must be a plain decimal number";
    }
    if (framing->bad_encoding) {
        return "the only Transfer-Encoding understood here is chunked";
    }
    if (framing->encodings > 0 && strcmp(http_version, MHD_HTTP_VERSION_1_1) != 0) {
        return "Transfer-Encoding needs HTTP/1.1";
    }
    if (framing->hidden) {
        return "a header has a NUL or another control character in it, no name, or goes on in the "
               "next line";
    }
    if (framing->bad_name) {
        return "a header's name has characters that no name may have";
    }
    if (framing->hosts > 1 ||
        (framing->hosts == 0 && strcmp(http_version, MHD_HTTP_VERSION_1_1) == 0)) {
        return "HTTP/1.1 needs one Host header";
    }
    return NULL;
}

bool kvp_framing_target_plain(const char *target)
{
    for (; *target != '\0'; target++) {
        if ((unsigned char)*target <= ' ' || *target == 0x7f || *target == '#') {
            return false;
        }
    }
    return true;
}
