/* SPDX-License-Identifier: Apache-2.0 */
/* The servers behind us: which of them may take a request, and what it is told where none may. */
#include "proxy/internal.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/percent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETRY_PAUSED_S 1
#define RETRY_ASLEEP_S 5
#define UNREACHED_NS   KVB_NS_PER_S /* for so long one that was not reached is the last choice */

bool kvp_gate_parse(const char *text, enum kvp_gate *gate_p)
{
    static const char *const words[] = {
        [KVP_GATE_PASS] = "pass", [KVP_GATE_HOLD] = "hold", [KVP_GATE_REFUSE] = "refuse"};
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *gate_p = (enum kvp_gate)i;
            return true;
        }
    }
    return false;
}

/* ---- what makes an engine compute ---- */

/* As the server will read it; one that is longer than any that is known, or not well coded, is "".
 */
static void read_path(const char *path, char plain[64])
{
    if (kvb_percent_decode(path, strcspn(path, "?"), false, plain, 64) != KVB_OK) {
        plain[0] = '\0';
    }
    for (size_t len = strlen(plain); len > 1 && plain[len - 1] == '/'; len--) {
        plain[len - 1] = '\0';
    }
}

static bool is_one_of(const char *word, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(word, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

bool kvp_proxy_generates(const char *method, const char *path)
{
    static const char *const paths[] = {
        /* OpenAI's, and others' of that kind */
        "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses",
        "/v1/messages", "/v1/embeddings", "/v1/score", "/v1/rerank", "/v2/rerank", "/v2/embed",
        "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/classify", "/api/generate",
        "/api/chat",
        /* vLLM's */
        "/generate", "/inference/v1/generate", "/pooling", "/classify", "/score", "/rerank",
        "/invocations",
        /* SGLang's */
        "/encode", "/generate_from_file", "/vertex_generate"};
    char plain[64];
    bool acts = strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0; /* SGLang takes both */

    read_path(path, plain);
    return acts && is_one_of(plain, paths, sizeof paths / sizeof paths[0]);
}

bool kvp_proxy_changes(const char *method, const char *path)
{
    static const char *const harmless[] = {"GET", "HEAD", "OPTIONS"};
    /* What SGLang does when it is asked by GET, too. */
    static const char *const effects[] = {"/start_profile",
                                          "/stop_profile",
                                          "/slow_down",
                                          "/open_session",
                                          "/close_session",
                                          "/configure_logging",
                                          "/freeze_gc",
                                          "/set_trace_level",
                                          "/weights_checker",
                                          "/clear_hicache_storage_backend",
                                          "/start_expert_distribution_record",
                                          "/stop_expert_distribution_record",
                                          "/dump_expert_distribution_record"};
    char plain[64];

    if (!is_one_of(method, harmless, sizeof harmless / sizeof harmless[0])) {
        return !kvp_proxy_generates(method, path);
    }
    read_path(path, plain);
    return is_one_of(plain, effects, sizeof effects / sizeof effects[0]);
}

/* ---- targets ---- */

const char *kvp_target_label(const struct kvp_target *target)
{
    return target->name[0] != '\0' ? target->name : "-";
}

static struct kvp_target *find_locked(struct kvp_proxy *proxy, const char *name)
    KVB_REQUIRES(proxy->lock)
{
    kvb_list_each(&proxy->targets, link)
    {
        struct kvp_target *target = kvb_container_of(link, struct kvp_target, link);
        if (strcmp(target->name, name) == 0) {
            return target;
        }
    }
    return NULL;
}

static void free_target(struct kvp_target *target)
{
    free(target->url);
    free(target);
}

void kvp_proxy_put_target_locked(struct kvp_proxy *proxy, struct kvp_target *target)
{
    (void)proxy;
    if (target != NULL && --target->calls == 0 && kvb_list_empty(&target->link)) {
        free_target(target);
    }
}

static void drop_locked(struct kvp_proxy *proxy, struct kvp_target *target)
    KVB_REQUIRES(proxy->lock)
{
    kvb_list_remove(&target->link);
    proxy->ntargets--;
    if (target->calls == 0) {
        free_target(target);
    }
}

/* http or https, a host, perhaps a port, and nothing else. */
static kvb_status_t check_url(const char *url)
{
    static const struct {
        CURLUPart part;
        CURLUcode absent;
    } nones[] = {{CURLUPART_USER, CURLUE_NO_USER},
                 {CURLUPART_QUERY, CURLUE_NO_QUERY},
                 {CURLUPART_FRAGMENT, CURLUE_NO_FRAGMENT}};
    char *scheme = NULL, *path = NULL;
    kvb_status_t status = KVB_ERR_INVALID;
    CURLU *parsed = curl_url();
    if (parsed == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(parsed, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        curl_url_get(parsed, CURLUPART_PATH, &path, 0) == CURLUE_OK &&
        (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0) && strcmp(path, "/") == 0) {
        status = KVB_OK;
    }
    for (size_t i = 0; i < sizeof nones / sizeof nones[0]; i++) {
        char *part = NULL;
        if (curl_url_get(parsed, nones[i].part, &part, 0) != nones[i].absent) {
            status = KVB_ERR_INVALID;
        }
        curl_free(part);
    }
    curl_free(scheme);
    curl_free(path);
    curl_url_cleanup(parsed);
    return status;
}

static void changed_locked(struct kvp_proxy *proxy) KVB_REQUIRES(proxy->lock)
{
    static const uint64_t one = 1;

    proxy->generation++;
    if (proxy->asleep && proxy->nheld > 0) {
        proxy->asleep = false;
        (void)!write(proxy->woken, &one, sizeof one);
    }
}

kvb_status_t kvp_proxy_set_target(struct kvp_proxy *proxy, const char *name, const char *url)
{
    kvb_status_t status = check_url(url);
    if (status != KVB_OK) {
        KVB_LOG(ERROR,
                "the engine's server is given as http://HOST:PORT or https://HOST:PORT, and no "
                "path",
                KVB_STR("instance", name), KVB_STR("url", url), KVB_STATUS(status));
        return status;
    }
    struct kvp_target *target = calloc(1, sizeof *target);
    char *copy = strdup(url);
    if (target == NULL || copy == NULL) {
        free(target);
        free(copy);
        return KVB_ERR_NO_MEMORY;
    }
    size_t len = strlen(copy);
    if (copy[len - 1] == '/') {
        copy[len - 1] = '\0';
    }
    target->url = copy;
    (void)snprintf(target->name, sizeof target->name, "%s", name);
    kvb_mutex_lock(&proxy->lock);
    struct kvp_target *old = find_locked(proxy, name);
    if (old == NULL && proxy->ntargets == KVP_PROXY_TARGETS_MAX) {
        status = KVB_ERR_LIMIT;
    } else {
        if (old != NULL) {
            drop_locked(proxy, old);
        }
        kvb_list_push_back(&proxy->targets, &target->link);
        proxy->ntargets++;
        changed_locked(proxy);
    }
    kvb_mutex_unlock(&proxy->lock);
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "too many servers of engines", KVB_U64("limit", KVP_PROXY_TARGETS_MAX));
        free_target(target);
    }
    return status;
}

void kvp_proxy_remove_target(struct kvp_proxy *proxy, const char *name)
{
    kvb_mutex_lock(&proxy->lock);
    struct kvp_target *target = find_locked(proxy, name);
    if (target != NULL) {
        drop_locked(proxy, target);
        changed_locked(proxy);
    }
    kvb_mutex_unlock(&proxy->lock);
}

/* ---- states ---- */

static struct kvp_told *told_locked(struct kvp_proxy *proxy, const char *instance)
    KVB_REQUIRES(proxy->lock)
{
    for (uint32_t i = 0; i < proxy->ntold; i++) {
        if (strcmp(proxy->told[i].instance, instance) == 0) {
            return &proxy->told[i];
        }
    }
    return NULL;
}

void kvp_proxy_tell(struct kvp_proxy *proxy, const char *instance, enum kvp_target_state state,
                    const char *reason)
{
    kvb_mutex_lock(&proxy->lock);
    struct kvp_told *told = told_locked(proxy, instance);
    if (told == NULL && proxy->ntold < KVP_PROXY_TOLD_MAX) {
        told = &proxy->told[proxy->ntold++];
        *told = (struct kvp_told){.state = KVP_TARGET_RUNNING};
        (void)snprintf(told->instance, sizeof told->instance, "%s", instance);
    }
    if (told != NULL) {
        bool gone = state == KVP_TARGET_GONE;
        bool changed = told->gone != gone || (!gone && told->state != state);
        told->state = gone ? told->state : state;
        told->gone = gone;
        (void)snprintf(told->reason, sizeof told->reason, "%s", reason);
        if (changed) {
            changed_locked(proxy);
        }
    }
    kvb_mutex_unlock(&proxy->lock);
    if (told == NULL) {
        KVB_LOG_LIMITED(ERROR, "too many instances: requests to this one meet no gate",
                        KVB_STR("instance", instance));
    }
}

void kvp_proxy_drain(struct kvp_proxy *proxy)
{
    kvb_mutex_lock(&proxy->lock);
    proxy->drains = true;
    changed_locked(proxy);
    kvb_mutex_unlock(&proxy->lock);
}

/* How far from taking traffic. */
static unsigned badness(enum kvp_target_state state)
{
    static const unsigned rank[] = {
        [KVP_TARGET_RUNNING] = 0, [KVP_TARGET_PAUSED] = 1, [KVP_TARGET_ASLEEP] = 2};
    return rank[state];
}

/* One of no name stands for all. instance: which is meant of them, "": any. NULL: nobody has told.
 */
static const struct kvp_told *state_locked(struct kvp_proxy *proxy, const struct kvp_target *target,
                                           const char *instance) KVB_REQUIRES(proxy->lock)
{
    const struct kvp_told *worst = NULL;

    if (target->name[0] != '\0') {
        return told_locked(proxy, target->name);
    }
    if (instance[0] != '\0') {
        return told_locked(proxy, instance);
    }
    for (uint32_t i = 0; i < proxy->ntold; i++) {
        const struct kvp_told *each = &proxy->told[i];
        if (find_locked(proxy, each->instance) == NULL &&
            (worst == NULL || badness(each->state) > badness(worst->state))) {
            worst = each;
        }
    }
    return worst;
}

/* ---- which one ---- */

struct choice {
    struct kvp_target *target;
    const struct kvp_told *told; /* NULL: it runs, for all we know */
};

static enum kvp_target_state state_of(const struct choice *choice)
{
    return choice->told != NULL ? choice->told->state : KVP_TARGET_RUNNING;
}

static bool away(const struct kvp_proxy *proxy, const struct choice *choice)
    KVB_REQUIRES(proxy->lock)
{
    uint64_t unreached_ns = choice->target->unreached_ns;
    return (choice->told != NULL && choice->told->gone) ||
           (unreached_ns != 0 && kvb_now_ns(proxy->config.clock) - unreached_ns < UNREACHED_NS);
}

static bool better(const struct kvp_proxy *proxy, const struct choice *a, const struct choice *b)
    KVB_REQUIRES(proxy->lock)
{
    unsigned bad_a = badness(state_of(a)) + (away(proxy, a) ? 3 : 0);
    unsigned bad_b = badness(state_of(b)) + (away(proxy, b) ? 3 : 0);
    return bad_a != bad_b ? bad_a < bad_b : a->target->calls < b->target->calls;
}

static struct choice choose_locked(struct kvp_proxy *proxy, const char *instance)
    KVB_REQUIRES(proxy->lock)
{
    struct choice best = {.target = NULL};

    if (instance[0] != '\0') {
        best.target = find_locked(proxy, instance);
        if (best.target == NULL && told_locked(proxy, instance) != NULL) {
            best.target = find_locked(proxy, "");
        }
        best.told = best.target != NULL ? state_locked(proxy, best.target, instance) : NULL;
        return best;
    }
    kvb_list_each(&proxy->targets, link)
    {
        struct choice each = {.target = kvb_container_of(link, struct kvp_target, link)};
        each.told = state_locked(proxy, each.target, "");
        if (best.target == NULL || better(proxy, &each, &best)) {
            best = each;
        }
    }
    return best;
}

static enum kvp_gate gate_of(const struct kvp_proxy *proxy, enum kvp_target_state state)
{
    switch (state) {
    case KVP_TARGET_PAUSED:
        return proxy->config.while_paused;
    case KVP_TARGET_ASLEEP:
        return proxy->config.while_asleep;
    case KVP_TARGET_RUNNING:
    case KVP_TARGET_GONE:
        return KVP_GATE_PASS;
    }
    KVB_UNREACHABLE("state");
}

enum kvp_admission kvp_proxy_admit_locked(struct kvp_proxy *proxy, const char *instance,
                                          bool generates, struct kvp_target **target_p,
                                          struct kvp_proxy_refusal *refusal_p)
{
    struct choice choice = choose_locked(proxy, instance);

    if (proxy->drains || atomic_load(&proxy->closed)) {
        *refusal_p = kvp_refusal_closed;
        return KVP_REFUSED;
    }
    if (choice.target == NULL) {
        bool none = proxy->ntargets == 0;
        kvp_refusal_set(refusal_p, none ? 503 : 404, none ? RETRY_ASLEEP_S : 0, "unknown",
                        none ? "no engine's server is known to pass this on to"
                             : "there is no instance of that name with a server of its own");
        refusal_p->param = none ? NULL : "instance";
        return KVP_REFUSED;
    }
    enum kvp_target_state state = state_of(&choice);
    enum kvp_gate gate = generates ? gate_of(proxy, state) : KVP_GATE_PASS;
    if (gate == KVP_GATE_PASS) {
        choice.target->calls++;
        kvb_list_remove(&choice.target->link); /* the next one, of equals, goes to another */
        kvb_list_push_back(&proxy->targets, &choice.target->link);
        *target_p = choice.target;
        return KVP_ADMITTED;
    }
    bool asleep = state == KVP_TARGET_ASLEEP;
    kvp_refusal_set(refusal_p, 503, asleep ? RETRY_ASLEEP_S : RETRY_PAUSED_S,
                    asleep ? "asleep" : "paused", "%s takes no request that generates: %s",
                    choice.told->instance,
                    choice.told->reason[0] != '\0' ? choice.told->reason
                    : asleep                       ? "asleep"
                                                   : "paused");
    return gate == KVP_GATE_HOLD ? KVP_HOLD : KVP_REFUSED;
}
