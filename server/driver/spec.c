/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/spec.h"

#include "config_values.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define ERROR_MAX 256

static kvb_status_t refuse(char *error, const char *item, const char *what)
{
    (void)snprintf(error, ERROR_MAX, "`%.80s`: %s", item, what);
    return KVB_ERR_INVALID;
}

/* http(s)://HOST[:PORT], and nothing behind it: paths are ours to say. */
static bool url_sound(const char *url)
{
    size_t scheme = strncmp(url, "http://", 7) == 0 ? 7 : strncmp(url, "https://", 8) == 0 ? 8 : 0;
    size_t host = scheme == 0 ? 0
                              : strspn(url + scheme, "abcdefghijklmnopqrstuvwxyz"
                                                     "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                     "0123456789.-_:[]");
    return host > 0 && url[scheme] != ':' && url[scheme + host] == '\0' &&
           strlen(url) < KVP_ENGINE_URL_MAX;
}

static kvb_status_t read_spec(const char *item, uint32_t number, struct kvp_engine_spec *spec,
                              char *error)
{
    const char *equals = strchr(item, '=');
    size_t kind = equals != NULL ? (size_t)(equals - item) : 0;
    if (kind == 0 || kind >= sizeof spec->kind) {
        return refuse(error, item, "is not KIND=[NAME@]URL, as vllm=http://10.0.0.1:8000");
    }
    memcpy(spec->kind, item, kind);
    spec->kind[kind] = '\0';
    union kvp_value none;
    char allowed[64];
    if (!kvp_value_parse(KVP_VALUE_CHOICE, KVP_ENGINE_KINDS, spec->kind, &none, allowed,
                         sizeof allowed)) {
        return refuse(error, item, "there is no such kind of server; one of: vllm, sglang");
    }
    const char *url = equals + 1;
    const char *at = strchr(url, '@');
    if (at != NULL) {
        (void)snprintf(spec->name, sizeof spec->name, "%.*s", (int)(at - url), url);
        if ((size_t)(at - url) >= sizeof spec->name || !kvb_name_valid(spec->name)) {
            return refuse(error, item, "a name is of letters, digits and ._-");
        }
        url = at + 1;
    } else {
        (void)snprintf(spec->name, sizeof spec->name, "engine-%u", number);
    }
    size_t len = strlen(url);
    len -= len > 0 && url[len - 1] == '/'; /* as browsers show it */
    (void)snprintf(spec->url, sizeof spec->url, "%.*s", (int)len, url);
    if (len >= sizeof spec->url || !url_sound(spec->url)) {
        return refuse(error, item, "is not http://HOST:PORT or https://HOST:PORT");
    }
    return KVB_OK;
}

kvb_status_t kvp_engine_specs(const char *list, struct kvp_engine_spec specs[KVP_ENGINES_MAX],
                              uint32_t *n_p, char *error)
{
    uint32_t n = 0;
    while (*list != '\0') {
        char item[KVP_ENGINE_URL_MAX + KVB_NAME_MAX + 16];
        if (n == KVP_ENGINES_MAX) {
            return refuse(error, list, "more than 64 servers");
        }
        list = kvp_next_item(list, item, sizeof item);
        kvb_status_t status = read_spec(item, n, &specs[n], error);
        if (status != KVB_OK) {
            return status;
        }
        for (uint32_t i = 0; i < n; i++) {
            if (strcmp(specs[i].name, specs[n].name) == 0 ||
                strcasecmp(specs[i].url, specs[n].url) == 0) { /* there is nothing but a host */
                return refuse(error, item, "two servers of one name, or one server twice");
            }
        }
        n++;
    }
    *n_p = n;
    return KVB_OK;
}
