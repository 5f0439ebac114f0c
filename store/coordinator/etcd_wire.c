/* SPDX-License-Identifier: Apache-2.0 */
#include "etcd_wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- base64 (RFC 4648, section 4) ---- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static json_t *encode(const char *bytes, size_t len)
{
    size_t size = (len + 2) / 3 * 4;
    char *text = malloc(size + 1);
    if (text == NULL) {
        return NULL;
    }
    char *out = text;
    for (size_t i = 0; i < len; i += 3) {
        uint32_t bits = (uint32_t)(uint8_t)bytes[i] << 16;
        bits |= i + 1 < len ? (uint32_t)(uint8_t)bytes[i + 1] << 8 : 0;
        bits |= i + 2 < len ? (uint32_t)(uint8_t)bytes[i + 2] : 0;
        *out++ = digits[bits >> 18];
        *out++ = digits[bits >> 12 & 63];
        *out++ = i + 1 < len ? digits[bits >> 6 & 63] : '=';
        *out++ = i + 2 < len ? digits[bits & 63] : '=';
    }
    json_t *string = json_stringn_nocheck(text, size);
    free(text);
    return string;
}

static int digit_of(char c)
{
    const char *at = c == '\0' ? NULL : strchr(digits, c);
    return at == NULL ? -1 : (int)(at - digits);
}

/* malloc'd, NUL-terminated. PROTOCOL, NO_MEMORY. */
static kvb_status_t decode(const json_t *string, char **bytes_p, size_t *len_p)
{
    const char *text = string == NULL ? "" : json_string_value(string);
    size_t size = string == NULL ? 0 : json_string_length(string);
    if (text == NULL || size % 4 != 0) {
        return KVB_ERR_PROTOCOL;
    }
    size_t pad = size > 0 && text[size - 1] == '=' ? (text[size - 2] == '=' ? 2u : 1u) : 0u;
    char *bytes = malloc(size / 4 * 3 + 1);
    if (bytes == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    size_t len = 0;
    for (size_t i = 0; i < size; i += 4) {
        uint32_t bits = 0;
        for (size_t j = i; j < i + 4; j++) {
            int digit = j >= size - pad ? 0 : digit_of(text[j]);
            if (digit < 0) {
                free(bytes);
                return KVB_ERR_PROTOCOL;
            }
            bits = bits << 6 | (uint32_t)digit;
        }
        bytes[len++] = (char)(bits >> 16);
        bytes[len++] = (char)(bits >> 8);
        bytes[len++] = (char)bits;
    }
    len -= pad;
    bytes[len] = '\0';
    *bytes_p = bytes;
    *len_p = len;
    return KVB_OK;
}

/* ---- requests ---- */

static json_t *number(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

/* Takes value; false: out of memory. */
static bool set(json_t *object, const char *field, json_t *value)
{
    return json_object_set_new(object, field, value) == 0;
}

/* The key after all that begin with prefix: its last byte is '/', and so never the highest. */
static json_t *end_of(const char *prefix)
{
    size_t len = strlen(prefix);
    char *end = strdup(prefix);
    if (end == NULL) {
        return NULL;
    }
    end[len - 1]++;
    json_t *string = encode(end, len);
    free(end);
    return string;
}

/* {kind: {"key": …}}; *inner_p: borrowed. */
static json_t *keyed(const char *kind, const char *key, json_t **inner_p)
{
    json_t *inner = json_object();
    if (inner == NULL || !set(inner, "key", encode(key, strlen(key)))) {
        json_decref(inner);
        return NULL;
    }
    *inner_p = inner;
    if (kind == NULL) {
        return inner;
    }
    json_t *outer = json_object();
    if (outer == NULL) {
        json_decref(inner);
        return NULL;
    }
    if (!set(outer, kind, inner)) {
        json_decref(outer);
        return NULL;
    }
    return outer;
}

static json_t *checked(json_t *whole, bool ok)
{
    if (!ok) {
        json_decref(whole);
        return NULL;
    }
    return whole;
}

json_t *kvs_wire_put(const char *key, const char *value, uint64_t lease)
{
    json_t *inner;
    json_t *request = keyed("request_put", key, &inner);
    if (request == NULL) {
        return NULL;
    }
    bool ok = set(inner, "value", encode(value, strlen(value)));
    return checked(request, ok && (lease == 0 || set(inner, "lease", number(lease))));
}

json_t *kvs_wire_delete(const char *key)
{
    json_t *inner;
    return keyed("request_delete_range", key, &inner);
}

json_t *kvs_wire_delete_prefix(const char *prefix)
{
    json_t *inner;
    json_t *request = keyed("request_delete_range", prefix, &inner);
    return request == NULL ? NULL : checked(request, set(inner, "range_end", end_of(prefix)));
}

json_t *kvs_wire_range(const char *key)
{
    json_t *inner;
    return keyed("request_range", key, &inner);
}

json_t *kvs_wire_range_prefix(const char *prefix, bool keys_only)
{
    json_t *inner;
    json_t *request = keyed("request_range", prefix, &inner);
    if (request == NULL) {
        return NULL;
    }
    bool ok = set(inner, "range_end", end_of(prefix));
    return checked(request, ok && (!keys_only || set(inner, "keys_only", json_true())));
}

static json_t *compare(const char *key, const char *target, const char *result, const char *field,
                       json_t *value)
{
    json_t *whole;
    if (keyed(NULL, key, &whole) == NULL) {
        json_decref(value);
        return NULL;
    }
    bool ok = set(whole, field, value);
    ok = ok && set(whole, "target", json_string(target));
    return checked(whole, ok && set(whole, "result", json_string(result)));
}

json_t *kvs_wire_if_absent(const char *key)
{
    return compare(key, "VERSION", "EQUAL", "version", number(0));
}

json_t *kvs_wire_if_present(const char *key)
{
    return compare(key, "VERSION", "GREATER", "version", number(0));
}

json_t *kvs_wire_if_value(const char *key, const char *value)
{
    return compare(key, "VALUE", "EQUAL", "value", encode(value, strlen(value)));
}

json_t *kvs_wire_if_created(const char *key, uint64_t create_rev)
{
    return compare(key, "CREATE", "EQUAL", "create_revision", number(create_rev));
}

json_t *kvs_wire_if_modified(const char *key, uint64_t mod_rev)
{
    return compare(key, "MOD", "EQUAL", "mod_revision", number(mod_rev));
}

json_t *kvs_wire_if_prefix_older(const char *prefix, uint64_t rev)
{
    json_t *whole = compare(prefix, "MOD", "LESS", "mod_revision", number(rev + 1));
    return whole == NULL ? NULL : checked(whole, set(whole, "range_end", end_of(prefix)));
}

void kvs_txn_init(struct kvs_txn *txn)
{
    *txn = (struct kvs_txn){json_array(), json_array(), json_array(), false};
}

static uint32_t add(struct kvs_txn *txn, json_t *array, json_t *value)
{
    txn->failed = json_array_append_new(array, value) != 0 || txn->failed;
    return (uint32_t)json_array_size(array) - 1;
}

void kvs_txn_when(struct kvs_txn *txn, json_t *condition)
{
    (void)add(txn, txn->when, condition);
}

uint32_t kvs_txn_then(struct kvs_txn *txn, json_t *request)
{
    return add(txn, txn->then, request);
}

uint32_t kvs_txn_otherwise(struct kvs_txn *txn, json_t *request)
{
    return add(txn, txn->otherwise, request);
}

static char *dump(json_t *object)
{
    char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text;
}

char *kvs_txn_body(struct kvs_txn *txn)
{
    json_t *body = json_object();
    bool ok = !txn->failed && body != NULL;
    ok = json_object_set_new(body, "compare", txn->when) == 0 && ok;
    ok = json_object_set_new(body, "success", txn->then) == 0 && ok;
    ok = json_object_set_new(body, "failure", txn->otherwise) == 0 && ok;
    *txn = (struct kvs_txn){0};
    return dump(checked(body, ok));
}

char *kvs_wire_page_body(const char *key, const char *prefix, uint64_t rev, uint32_t limit)
{
    json_t *inner;
    json_t *body = keyed(NULL, key, &inner);
    if (body == NULL) {
        return NULL;
    }
    bool ok = set(body, "range_end", end_of(prefix)) && set(body, "limit", number(limit));
    return dump(checked(body, ok && (rev == 0 || set(body, "revision", number(rev)))));
}

char *kvs_wire_watch_body(const char *prefix, uint64_t rev, const char *key)
{
    json_t *all, *one;
    json_t *first = keyed("create_request", prefix, &all);
    json_t *second = keyed("create_request", key, &one);
    bool ok = first != NULL && second != NULL && set(all, "range_end", end_of(prefix)) &&
              set(all, "start_revision", number(rev)) && set(all, "watch_id", number(1)) &&
              set(one, "watch_id", number(2));
    char *a = dump(checked(first, ok));
    char *b = dump(checked(second, ok));
    char *body = NULL;
    if (a != NULL && b != NULL && (body = malloc(strlen(a) + strlen(b) + 2)) != NULL) {
        sprintf(body, "%s\n%s", a, b);
    }
    free(a);
    free(b);
    return body;
}

char *kvs_wire_lease_body(const char *field, uint64_t value)
{
    json_t *body = json_object();
    return dump(checked(body, body != NULL && set(body, field, number(value))));
}

/* ---- answers ---- */

bool kvs_wire_u64(const json_t *object, const char *field, uint64_t *value_p)
{
    const json_t *value = json_object_get(object, field);
    if (value == NULL) {
        *value_p = 0;
        return true;
    }
    const char *text = json_string_value(value);
    size_t len = text == NULL ? 0 : json_string_length(value);
    uint64_t sum = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(text[i] - '0'), &sum)) {
            return false;
        }
    }
    *value_p = sum;
    return len > 0;
}

bool kvs_wire_bool(const json_t *object, const char *field, bool *value_p)
{
    const json_t *value = json_object_get(object, field);
    *value_p = json_is_true(value);
    return value == NULL || json_is_boolean(value);
}

bool kvs_wire_revision(const json_t *answer, uint64_t *rev_p)
{
    const json_t *header = json_object_get(answer, "header");
    uint64_t rev;
    if (!json_is_object(header) || !kvs_wire_u64(header, "revision", &rev) || rev == 0 ||
        rev >= INT64_MAX) {
        return false;
    }
    *rev_p = rev;
    return true;
}

static kvb_status_t parse_kv(const json_t *object, struct kvs_kv *kv)
{
    if (!json_is_object(object) || !kvs_wire_u64(object, "create_revision", &kv->create_rev) ||
        !kvs_wire_u64(object, "mod_revision", &kv->mod_rev) || kv->mod_rev == 0 ||
        kv->mod_rev >= INT64_MAX || kv->create_rev > kv->mod_rev ||
        (kv->create_rev == 0 && !kv->deleted)) {
        return KVB_ERR_PROTOCOL;
    }
    kvb_status_t status = decode(json_object_get(object, "key"), &kv->key, &kv->key_len);
    if (status != KVB_OK) {
        return status;
    }
    status = decode(json_object_get(object, "value"), &kv->value, &kv->value_len);
    if (status != KVB_OK) {
        free(kv->key);
    }
    return status;
}

static kvb_status_t give(const json_t *object, bool deleted,
                         kvb_status_t (*each)(void *ctx, const struct kvs_kv *kv), void *ctx)
{
    struct kvs_kv kv = {.deleted = deleted};
    kvb_status_t status = parse_kv(object, &kv);
    if (status == KVB_OK) {
        status = each(ctx, &kv);
        free(kv.key);
        free(kv.value);
    }
    return status;
}

kvb_status_t kvs_wire_each_kv(const json_t *array,
                              kvb_status_t (*each)(void *ctx, const struct kvs_kv *kv), void *ctx)
{
    if (array != NULL && !json_is_array(array)) {
        return KVB_ERR_PROTOCOL;
    }
    kvb_status_t status = KVB_OK;
    for (size_t i = 0; i < json_array_size(array) && status == KVB_OK; i++) {
        status = give(json_array_get(array, i), false, each, ctx);
    }
    return status;
}

kvb_status_t kvs_wire_each_event(const json_t *array,
                                 kvb_status_t (*each)(void *ctx, const struct kvs_kv *kv),
                                 void *ctx)
{
    if (array != NULL && !json_is_array(array)) {
        return KVB_ERR_PROTOCOL;
    }
    kvb_status_t status = KVB_OK;
    for (size_t i = 0; i < json_array_size(array) && status == KVB_OK; i++) {
        const json_t *event = json_array_get(array, i);
        const json_t *type = json_object_get(event, "type");
        const char *text = type == NULL ? "PUT" : json_string_value(type);
        bool deleted = text != NULL && strcmp(text, "DELETE") == 0;
        if (text == NULL || (!deleted && strcmp(text, "PUT") != 0)) {
            return KVB_ERR_PROTOCOL;
        }
        status = give(json_object_get(event, "kv"), deleted, each, ctx);
    }
    return status;
}

/* A response to this request: {"request_x": …} has {"response_x": {…}}. */
static bool answers(const json_t *response, const json_t *request)
{
    static const char *const kinds[][2] = {{"request_put", "response_put"},
                                           {"request_range", "response_range"},
                                           {"request_delete_range", "response_delete_range"}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (json_object_get(request, kinds[i][0]) != NULL) {
            return json_is_object(json_object_get(response, kinds[i][1]));
        }
    }
    return false;
}

bool kvs_txn_parse(const json_t *answer, const json_t *then, const json_t *otherwise,
                   struct kvs_txn_answer *parsed_p)
{
    struct kvs_txn_answer parsed;
    if (!kvs_wire_bool(answer, "succeeded", &parsed.succeeded) ||
        !kvs_wire_revision(answer, &parsed.rev)) {
        return false;
    }
    parsed.responses = json_object_get(answer, "responses");
    const json_t *requests = parsed.succeeded ? then : otherwise;
    if ((parsed.responses != NULL && !json_is_array(parsed.responses)) ||
        json_array_size(parsed.responses) != json_array_size(requests)) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(requests); i++) {
        if (!answers(json_array_get(parsed.responses, i), json_array_get(requests, i))) {
            return false;
        }
    }
    *parsed_p = parsed;
    return true;
}

const json_t *kvs_txn_kvs(const struct kvs_txn_answer *answer, uint32_t place, bool *sound_p)
{
    const json_t *range =
        json_object_get(json_array_get(answer->responses, place), "response_range");
    const json_t *kvs = json_object_get(range, "kvs");
    bool more = true;
    *sound_p = json_is_object(range) && kvs_wire_bool(range, "more", &more) && !more &&
               (kvs == NULL || json_is_array(kvs));
    return *sound_p ? kvs : NULL;
}
