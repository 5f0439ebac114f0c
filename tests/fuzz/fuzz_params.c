/* SPDX-License-Identifier: Apache-2.0 */
/* Request line and body as a peer sends them: "METHOD PATH?QUERY\nBODY". */
#include "control/routes.h"
#include "fuzz.h"
#include "http/params.h"

/* What was accepted is in range, terminated, and can be shown. */
static void check(const struct kvp_params *params, const char *instance)
{
    kvb_assert(params->level <= 2 && params->ntags <= KVB_TAGS_MAX);
    kvb_assert(instance[0] == '\0' || strcmp(instance, KVP_EVERY_INSTANCE) == 0 ||
               kvb_name_valid(instance));
    for (uint32_t i = 0; i < params->ntags; i++) {
        json_t *tag = json_string(params->tags[i]);
        kvb_assert(tag != NULL && strlen(params->tags[i]) < KVB_NAME_MAX);
        json_decref(tag);
    }
    json_t *version = json_string(params->weight_version);
    kvb_assert(version != NULL);
    json_decref(version);
}

static void read_params(const struct kvp_route *route, const char *query, const json_t *json)
{
    struct kvp_params params, before;
    struct kvp_param_error wrong;
    char instance[KVB_NAME_MAX] = "before";
    memset(&params, 0x5a, sizeof params);
    memcpy(&before, &params, sizeof before);
    if (kvp_params_read(route, query, json, &params, instance, &wrong) == KVB_OK) {
        check(&params, instance);
        return;
    }
    fuzz_told(wrong.param);
    fuzz_told(wrong.message);
    kvb_assert(memcmp(&params, &before, sizeof params) == 0 && strcmp(instance, "before") == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    kvb_assert(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    char *body = memchr(text, '\n', size);
    size_t body_len = body != NULL ? size - (size_t)(body + 1 - text) : 0;
    char *method = text;
    char *target = memchr(text, ' ', body != NULL ? (size_t)(body - text) : size);

    if (body != NULL) {
        *body++ = '\0';
    }
    if (target != NULL) {
        *target++ = '\0';
        size_t path_len = strcspn(target, "?");
        const char *query = target[path_len] == '?' ? target + path_len + 1 : NULL;
        const struct kvp_route *route;
        char arg[KVP_PATH_ARG_MAX];
        if (kvp_route_find(&kvp_route_table, method, target, path_len, &route, arg) == KVP_FOUND) {
            json_t *json = body_len > 0 ? json_loadb(body, body_len, 0, NULL) : NULL;
            read_params(route, query, json_is_object(json) ? json : NULL);
            json_decref(json);
        }
    }
    free(text);
    return 0;
}
