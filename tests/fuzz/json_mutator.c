/* SPDX-License-Identifier: Apache-2.0 */
#include "json_mutator.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

enum { TEXTS_MAX = 64 };

static unsigned draw(unsigned *state, unsigned n)
{
    *state = *state * 1664525u + 1013904223u;
    return n == 0 ? 0 : (*state >> 8) % n;
}

static json_t *any_number(unsigned *state)
{
    static const json_int_t edges[] = {0,
                                       1,
                                       -1,
                                       2,
                                       255,
                                       65535,
                                       INT32_MAX,
                                       (json_int_t)UINT32_MAX,
                                       (json_int_t)UINT32_MAX + 1,
                                       INT64_MAX,
                                       INT64_MIN};
    switch (draw(state, 4)) {
    case 0:
        return json_real(1e308);
    case 1:
        return json_real(-0.5);
    default:
        return json_integer(edges[draw(state, sizeof edges / sizeof edges[0])]);
    }
}

static json_t *any_text(unsigned *state)
{
    static const char *const texts[] = {"",
                                        "true",
                                        "0",
                                        "-1",
                                        "18446744073709551615",
                                        "\x1b[2J",
                                        "\xc2\x9b",
                                        "\xf0\x9f\x8c\x80",
                                        "a/b",
                                        "..",
                                        "AA==",
                                        "=",
                                        "kv_cache"};
    char longer[600];
    if (draw(state, 4) == 0) {
        size_t len = 1u << draw(state, 10);
        memset(longer, 'x', len);
        longer[len] = '\0';
        return json_string(longer);
    }
    return json_string(texts[draw(state, sizeof texts / sizeof texts[0])]);
}

static json_t *any_value(unsigned *state)
{
    json_t *nested = json_array();
    switch (draw(state, 8)) {
    case 0:
        return nested;
    case 1:
        for (unsigned n = draw(state, 40); n > 0; n--) {
            nested = json_pack("[o]", nested);
        }
        return nested;
    default:
        json_decref(nested);
    }
    switch (draw(state, 8)) {
    case 0:
        return json_object();
    case 1:
        return json_null();
    case 2:
        return json_true();
    case 3:
        return json_false();
    case 4:
    case 5:
        return any_number(state);
    default:
        return any_text(state);
    }
}

/* Base64, as etcd's keys and values are, of what decodes: a byte of it is changed. */
static json_t *changed_text(const json_t *value, unsigned *state)
{
    static const char letters[] = "ABCabc019+/=._-:%\"\\ ";
    size_t len = json_string_length(value);
    char *text = strdup(json_string_value(value));
    if (len > 0 && draw(state, 2) == 0) {
        text[draw(state, (unsigned)len)] = letters[draw(state, sizeof letters - 1)];
    } else if (len > 0) {
        text[draw(state, (unsigned)len)] = '\0';
    }
    json_t *changed = json_string(text);
    free(text);
    return changed != NULL ? changed : json_string("");
}

static json_t *instead_of(const json_t *value, unsigned *state)
{
    if (json_is_string(value) && draw(state, 2) == 0) {
        return changed_text(value, state);
    }
    if (json_is_integer(value) && draw(state, 2) == 0) {
        json_int_t by = draw(state, 3);
        return json_integer((json_int_t)((uint64_t)json_integer_value(value) + (uint64_t)by - 1));
    }
    return any_value(state);
}

static void change_member(json_t *object, unsigned *state)
{
    void *at = json_object_iter(object);
    for (unsigned n = draw(state, (unsigned)json_object_size(object)); n > 0; n--) {
        at = json_object_iter_next(object, at);
    }
    if (at == NULL) {
        (void)json_object_set_new(object, "instance", any_value(state));
        return;
    }
    json_t *value = json_object_iter_value(at);
    const char *key = json_object_iter_key(at);
    if (json_object_size(value) + json_array_size(value) > 0 && draw(state, 8) > 0) {
        if (json_is_object(value)) {
            change_member(value, state);
        } else {
            size_t i = draw(state, (unsigned)json_array_size(value));
            json_t *item = json_array_get(value, i);
            if (json_is_object(item) && draw(state, 8) > 0) {
                change_member(item, state);
            } else if (draw(state, 3) == 0) {
                (void)json_array_remove(value, i);
            } else if (draw(state, 3) == 0) {
                (void)json_array_append(value, item);
            } else {
                (void)json_array_set_new(value, i, instead_of(item, state));
            }
        }
        return;
    }
    switch (draw(state, 6)) {
    case 0:
        (void)json_object_del(object, key);
        break;
    case 1: /* another's place */
        (void)json_object_set(object, draw(state, 2) == 0 ? "kvs" : "key", value);
        break;
    default:
        (void)json_object_set_new(object, key, instead_of(value, state));
    }
}

/* The objects in the input that are not within another. */
static size_t find_texts(const char *data, size_t size, size_t at[TEXTS_MAX], size_t len[TEXTS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < size && n < TEXTS_MAX; i++) {
        json_error_t why;
        json_t *json =
            data[i] == '{' ? json_loadb(data + i, size - i, JSON_DISABLE_EOF_CHECK, &why) : NULL;
        if (json != NULL) {
            at[n] = i;
            len[n++] = (size_t)why.position;
            i += (size_t)why.position - 1;
            json_decref(json);
        }
    }
    return n;
}

size_t fuzz_mutate_json(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    size_t at[TEXTS_MAX], len[TEXTS_MAX];
    unsigned state = seed;
    size_t n = draw(&state, 2) == 0 ? find_texts((const char *)data, size, at, len) : 0;
    if (n == 0) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    size_t which = draw(&state, (unsigned)n);
    json_t *json =
        json_loadb((const char *)data + at[which], len[which], JSON_DISABLE_EOF_CHECK, NULL);
    for (unsigned times = 1 + draw(&state, 3); times > 0; times--) {
        change_member(json, &state);
    }
    char *text = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(json);
    size_t new_len = text == NULL ? 0 : strlen(text);
    size_t rest = size - at[which] - len[which];
    if (text == NULL || at[which] + new_len + rest > max_size) {
        free(text);
        return LLVMFuzzerMutate(data, size, max_size);
    }
    memmove(data + at[which] + new_len, data + at[which] + len[which], rest);
    memcpy(data + at[which], text, new_len);
    free(text);
    return at[which] + new_len + rest;
}
