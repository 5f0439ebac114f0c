/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver between a real fleet and a server that is played here, with what is unsafe about it,
 * under a simulated clock. At every call in turn it fails in every way; what must not happen to it
 * is asserted where it happens.
 */
#include "driver/driver.h"
#include "instance_fixture.h"

#include <criterion/criterion.h>

/* ---- the server ---- */

enum fate {
    FATE_NONE,
    FATE_ERROR,      /* 500, and nothing was done */
    FATE_BREAK,      /* the connection breaks, and nothing was done */
    FATE_DONE_BREAK, /* it was done, and then it breaks */
    FATE_DONE_ERROR, /* it was done, and then it is a 500 */
    FATE_SLOW,       /* it takes longer than any bound */
    FATE_DIE,        /* the process dies, and is started again */
    FATES
};
#define SLOW_MS    400000
#define RESTART_MS 5000
#define CALLS_MAX  64

enum { WEIGHTS = 1, KV = 2, ALL = 3 };

struct server {
    struct world *w;
    bool sglang, aug, old; /* versions of vLLM: empty bodies; no /pause either */
    bool dev_mode;
    bool connector; /* it shares by one of its own */
    bool alive, healthy;
    unsigned health; /* what else /health answers; 0: nothing else */
    bool deaf;       /* /health gets no answer */
    bool no_gauge;   /* /metrics answers 500 */
    unsigned here;   /* tags that are */
    unsigned level;  /* of the last sleep */
    bool paused;
    uint32_t running; /* requests, that only end where they are let */
    uint32_t moving;  /* moves of memory under way */
    uint32_t pausing;
    struct kvb_timer restart;
    struct kvb_list asks;
    char calls[CALLS_MAX][80]; /* but for what is only looked at */
    char bodies[CALLS_MAX][160];
    uint32_t ncalls;
    uint32_t fail_at, fail_times; /* counted from 1; 0: never */
    enum fate fate;
    uint32_t looks; /* at /health */
    const char *json_of_relay;
};

struct asked {
    struct kvb_list link;
    struct server *server;
    struct kvp_web_call *call; /* NULL: canceled; the server goes on */
    struct kvb_timer timer;
    char path[80];
    char body[160];
    bool post, moves, begun;
    enum fate fate;
};

static void answer(struct asked *asked, kvb_status_t status, unsigned http_status, const char *body)
{
    struct kvp_web_call *call = asked->call;
    kvb_list_remove(&asked->link);
    asked->server->moving -= asked->moves;
    kvb_sched_timer_clear(&asked->server->w->sim.sched, &asked->timer);
    free(asked);
    if (call != NULL) {
        const struct kvp_web_answer told = {.status = status,
                                            .http_status = http_status,
                                            .body = body,
                                            .len = strlen(body),
                                            .why = "broken"};
        call->impl = NULL;
        call->done(call, &told);
    }
}

static void die(struct server *server)
{
    server->alive = false;
    kvb_sched_timer_set(&server->w->sim.sched, &server->restart,
                        sim_in_ms(&server->w->sim, RESTART_MS));
    for (struct kvb_list *link; (link = kvb_list_first(&server->asks)) != NULL;) {
        answer(kvb_container_of(link, struct asked, link), KVB_ERR_DISCONNECTED, 0, "");
    }
}

static void on_restart(struct kvb_timer *timer)
{
    struct server *server = kvb_container_of(timer, struct server, restart);
    server->alive = true;
    server->here = ALL;
    server->paused = false;
    server->running = 0;
}

static bool is(const struct asked *asked, const char *path)
{
    size_t len = strlen(path);
    return strncmp(asked->path, path, len) == 0 &&
           (asked->path[len] == '\0' || asked->path[len] == '?');
}

static unsigned tags_of(const char *text)
{
    return (strstr(text, "weights") != NULL ? WEIGHTS : 0u) |
           (strstr(text, "kv_cache") != NULL ? KV : 0u);
}

static const char *vllm(struct server *server, const struct asked *asked, unsigned *status)
{
    static char text[512];
    bool quiet = server->aug || server->old;
    /* Of a release of KV alone the gauge says nothing; and quiet ones say awake after any wake. */
    unsigned deep = server->here == ALL || (quiet && server->here != 0) ? 0 : server->level;
    if (is(asked, "/is_sleeping") && server->dev_mode) {
        return server->paused || server->here != ALL ? "{\"is_sleeping\":true}"
                                                     : "{\"is_sleeping\":false}";
    }
    if (is(asked, "/is_paused") && !server->old) {
        return server->paused ? "{\"is_paused\":true}" : "{\"is_paused\":false}";
    }
    if (is(asked, "/metrics") && server->no_gauge) {
        *status = 500;
        return "";
    }
    if (is(asked, "/metrics")) {
        snprintf(
            text, sizeof text,
            "# HELP vllm:num_requests_running n\nvllm:num_requests_running{engine=\"0\"} %u.0\n"
            "vllm:num_requests_waiting{engine=\"0\"} 0.0\n"
            "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"weights_offloaded\"} %d.0\n"
            "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"discard_all\"} %d.0\n"
            "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} %d.0\n",
            server->running, deep == 1, deep == 2, deep == 0);
        return text;
    }
    if (is(asked, "/pause") && !server->old) {
        server->paused = true;
        server->running = strstr(asked->path, "mode=abort") != NULL ? 0 : server->running;
        return "{\"status\":\"paused\"}";
    }
    if (is(asked, "/resume") && !server->old) {
        cr_assert_eq(server->here, ALL, "resumed while memory is not there");
        server->paused = false;
        return "{\"status\":\"resumed\"}";
    }
    if (is(asked, "/sleep")) {
        cr_assert(server->paused || server->old, "put to sleep while it runs");
        if (server->here == ALL || (!quiet && server->here != 0)) {
            server->here = 0;
            server->level = strstr(asked->path, "level=1") != NULL ? 1 : 2;
        }
        server->paused = true;
        return quiet ? "" : "{\"status\":\"sleeping\"}";
    }
    if (is(asked, "/wake_up")) {
        unsigned tags =
            strchr(asked->path, '=') != NULL ? tags_of(asked->path) : ALL & ~server->here;
        server->here |= (server->here & tags) == 0 ? tags : 0;
        server->paused = server->paused && server->here != ALL;
        return quiet ? "" : "{\"status\":\"awake\"}";
    }
    if (is(asked, "/release_kv_cache_memory") && !quiet) {
        if (!asked->post) {
            *status = 405;
            return "{}";
        }
        cr_assert(server->paused && server->here == ALL);
        server->here = WEIGHTS;
        server->level = 0;
        return "{\"status\":\"kv_cache_released\"}";
    }
    if (is(asked, "/reset_prefix_cache")) {
        bool ok = server->running == 0 || strstr(asked->path, "requests=true") != NULL;
        return server->old ? "" : ok ? "{\"success\":true}" : "{\"success\":false}";
    }
    if (is(asked, "/server_info")) {
        return server->connector ? "{\"vllm_config\":{\"kv_transfer_config\":{}}}"
                                 : "{\"vllm_config\":{\"kv_transfer_config\":null}}";
    }
    if (is(asked, "/get_world_size")) {
        return "{\"world_size\":4}";
    }
    if (is(asked, "/v1/models")) {
        return "{\"data\":[{\"id\":\"m\",\"max_model_len\":77}]}";
    }
    if (server->json_of_relay != NULL) {
        return server->json_of_relay;
    }
    *status = 404;
    return "{\"detail\":\"Not Found\"}";
}

static const char *sglang(struct server *server, const struct asked *asked, unsigned *status)
{
    static char text[128];
    unsigned tags = tags_of(asked->body);
    if (is(asked, "/get_load")) {
        snprintf(text, sizeof text, "[{\"num_reqs\":%u,\"num_waiting_reqs\":0}]", server->running);
        return text;
    }
    if (is(asked, "/pause_generation")) {
        server->paused = true;
        server->running = strstr(asked->body, "in_place") == NULL ? 0 : server->running;
        return "{\"status\":\"ok\"}";
    }
    if (is(asked, "/continue_generation")) {
        cr_assert_eq(server->here, ALL, "continued while memory is not there");
        server->paused = false;
        return "{\"status\":\"ok\"}";
    }
    if (is(asked, "/flush_cache")) {
        *status = server->running > 0 ? 400 : 200;
        return "flushed, or not";
    }
    if (is(asked, "/release_memory_occupation")) {
        cr_assert(server->paused && server->running == 0, "released while it runs");
        cr_assert_eq(server->here & tags, tags, "released twice");
        server->here &= ~tags;
        return "null";
    }
    if (is(asked, "/resume_memory_occupation")) {
        cr_assert_eq(server->here & tags, 0, "restored twice");
        server->here |= tags;
        return "null";
    }
    if (server->json_of_relay != NULL) {
        return server->json_of_relay;
    }
    *status = 404;
    return "{}";
}

static const char *handle(struct asked *asked, unsigned *status)
{
    struct server *server = asked->server;
    return server->sglang ? sglang(server, asked, status) : vllm(server, asked, status);
}

static void on_time(struct kvb_timer *timer)
{
    struct asked *asked = kvb_container_of(timer, struct asked, timer);
    struct server *server = asked->server;
    unsigned status = 200;
    const char *body = "";
    if (!server->alive) {
        answer(asked, KVB_ERR_REFUSED, 0, "");
        return;
    }
    switch (asked->fate) {
    case FATE_ERROR:
        answer(asked, KVB_OK, 500, "{\"error\":{\"message\":\"injected\"}}");
        return;
    case FATE_BREAK:
        answer(asked, KVB_ERR_DISCONNECTED, 0, "");
        return;
    case FATE_DIE:
        die(server);
        return;
    case FATE_DONE_BREAK:
        (void)handle(asked, &status);
        answer(asked, KVB_ERR_DISCONNECTED, 0, "");
        return;
    case FATE_DONE_ERROR:
        (void)handle(asked, &status);
        answer(asked, KVB_OK, 500, "{\"error\":{\"message\":\"done, but\"}}");
        return;
    default:
        break;
    }
    if (is(asked, "/health")) {
        status = server->health != 0 ? server->health : server->healthy ? 200 : 503;
    } else if (asked->post && strstr(asked->path, "mode=wait") != NULL && server->running > 0) {
        server->paused = server->paused || !asked->begun; /* at once; answered when it is idle */
        asked->begun = true;
        kvb_sched_timer_set(&server->w->sim.sched, timer, sim_in_ms(&server->w->sim, 10));
        return;
    } else if (asked->begun) {
        body = "{\"status\":\"paused\"}";
    } else {
        body = handle(asked, &status);
    }
    answer(asked, KVB_OK, status, body);
}

static void web_start(void *ctx, const struct kvp_web_ask *ask, struct kvp_web_call *call)
{
    struct server *server = ctx;
    struct asked *asked = calloc(1, sizeof *asked);
    cr_assert(asked != NULL && call->impl == NULL);
    asked->server = server;
    asked->call = call;
    asked->post = ask->post;
    cr_assert_eq(strncmp(ask->url, "http://s:1", 10), 0);
    snprintf(asked->path, sizeof asked->path, "%s", ask->url + 10);
    snprintf(asked->body, sizeof asked->body, "%.*s", (int)ask->body_len,
             ask->body != NULL ? ask->body : "");
    kvb_timer_init(&asked->timer, on_time);
    kvb_list_push_back(&server->asks, &asked->link);
    call->impl = asked;
    bool deaf = server->deaf && is(asked, "/health");
    server->looks += is(asked, "/health");
    if (!is(asked, "/health") && !is(asked, "/metrics") && !is(asked, "/get_load")) {
        if (server->ncalls < CALLS_MAX) {
            strcpy(server->calls[server->ncalls], asked->path);
            strcpy(server->bodies[server->ncalls], asked->body);
        }
        server->ncalls++;
        if (server->fail_at != 0 && server->ncalls >= server->fail_at &&
            server->ncalls < server->fail_at + server->fail_times) {
            asked->fate = server->fate;
        }
        cr_assert(server->moving == 0 || !ask->post || strstr(asked->path, "update") != NULL,
                  "%s meets a move of memory", asked->path);
    }
    asked->moves = ask->post && (is(asked, "/sleep") || is(asked, "/wake_up") ||
                                 strstr(asked->path, "release_") != NULL ||
                                 strstr(asked->path, "resume_memory") != NULL);
    server->moving += asked->moves;
    kvb_sched_timer_set(&server->w->sim.sched, &asked->timer,
                        sim_in_ms(&server->w->sim, asked->fate == FATE_SLOW || deaf ? SLOW_MS : 1));
}

static void web_cancel(void *ctx, struct kvp_web_call *call)
{
    (void)ctx;
    if (call->impl != NULL) {
        ((struct asked *)call->impl)->call = NULL;
        call->impl = NULL;
    }
}

/* ---- the world ---- */

struct rig {
    struct world w;
    struct server server;
    struct kvp_driver *driver;
};

static void open_as(struct rig *rig, bool is_sglang)
{
    static const struct kvp_web_ops ops = {.start = web_start, .cancel = web_cancel};
    memset(rig, 0, sizeof *rig);
    world_open_fleet(&rig->w, true, NULL);
    rig->server = (struct server){.w = &rig->w,
                                  .sglang = is_sglang,
                                  .alive = true,
                                  .healthy = true,
                                  .dev_mode = true,
                                  .here = ALL};
    kvb_list_init(&rig->server.asks);
    kvb_timer_init(&rig->server.restart, on_restart);
    struct kvp_engine_spec specs[KVP_ENGINES_MAX];
    uint32_t n = 1;
    char error[256];
    cr_assert_eq(kvp_engine_specs(is_sglang ? "sglang=a@http://s:1" : "vllm=a@http://s:1/", specs,
                                  &n, error),
                 KVB_OK, "%s", error);
    const struct kvp_driver_config config = {
        .sched = &rig->w.sim.sched,
        .fleet = rig->w.fleet,
        .web = &ops,
        .web_ctx = &rig->server,
        .specs = specs,
        .nspecs = n,
        .tenant = "default",
        .health_interval_ms = 2000,
        .health_ms = 5000,
        .misses = 3,
        .call_ms = 120000,
        .relay_ms = SLOW_MS / 2,
    };
    cr_assert_eq(kvp_driver_create(&config, &rig->driver), KVB_OK);
}

static bool is_attached(void *arg)
{
    struct rig *rig = arg;
    struct kvp_view view;
    return kvp_fleet_view(rig->w.fleet, "a", &view) && view.attached;
}

static void attach(struct rig *rig)
{
    cr_assert(sim_run_until(&rig->w.sim, is_attached, rig, 60000));
    rig->server.ncalls = 0;
}

static void open_rig(struct rig *rig, bool is_sglang)
{
    open_as(rig, is_sglang);
    attach(rig);
}

static void close_rig(struct rig *rig)
{
    kvp_driver_stop(rig->driver);
    kvb_sched_timer_clear(&rig->w.sim.sched, &rig->server.restart);
    rig->server.alive = false;
    for (struct kvb_list *link; (link = kvb_list_first(&rig->server.asks)) != NULL;) {
        answer(kvb_container_of(link, struct asked, link), KVB_ERR_DISCONNECTED, 0, "");
    }
    world_close(&rig->w);
    kvp_driver_destroy(rig->driver);
}

/* Does it, and what the server was asked, without what only looks. */
static void expect_calls(struct rig *rig, const char *words, const char *calls)
{
    char asked[1024] = "";
    struct told *told = world_do(&rig->w, words);
    cr_assert_eq(told->status, KVB_OK, "%s: %s", words, told->message);
    for (uint32_t i = 0; i < rig->server.ncalls; i++) {
        if (strncmp(rig->server.calls[i], "/is_", 4) != 0) {
            size_t used = strlen(asked);
            snprintf(asked + used, sizeof asked - used, "%s%s%s", used > 0 ? " " : "",
                     rig->server.calls[i], rig->server.bodies[i]);
        }
    }
    cr_assert_str_eq(asked, calls, "%s", words);
    rig->server.ncalls = 0;
}

#define PAUSE(mode) "/pause?mode=" mode "&clear_cache=false"
#define RESET       "/reset_prefix_cache?reset_running_requests=true"

Test(driver, verbs_become_vllms_calls)
{
    struct rig rig;
    open_rig(&rig, false);
    expect_calls(&rig, "pause keep", PAUSE("keep"));
    expect_calls(&rig, "resume", "/resume");
    expect_calls(&rig, "sleep 1 wait", PAUSE("wait") " " RESET " /sleep?level=1&mode=keep");
    cr_assert_eq(world_do(&rig.w, "sleep 2")->status, KVB_ERR_BAD_STATE); /* swallowed there */
    cr_assert_eq(world_do(&rig.w, "resume")->status, KVB_ERR_BAD_STATE);
    cr_assert_eq(rig.server.ncalls, 0);
    expect_calls(&rig, "wake weights", "/wake_up?tags=weights");
    expect_calls(&rig, "sleep 1", PAUSE("abort") " " RESET " /sleep?level=1&mode=keep");
    expect_calls(&rig, "wake",
                 "/wake_up?tags=weights /wake_up?tags=kv_cache " PAUSE("keep") " /resume");
    expect_calls(&rig, "sleep 2", PAUSE("abort") " " RESET " /sleep?level=2&mode=keep");
    expect_calls(&rig, "wake keep_pause",
                 "/wake_up?tags=weights /wake_up?tags=kv_cache " PAUSE("keep") " /resume");
    expect_calls(&rig, "pause", PAUSE("abort"));
    expect_calls(&rig, "release", RESET " /release_kv_cache_memory");
    expect_calls(&rig, "wake keep_pause", "/wake_up?tags=kv_cache " PAUSE("keep"));
    cr_assert(rig.server.paused);
    expect_calls(&rig, "resume", "/resume");
    struct kvp_view view = world_view(&rig.w);
    cr_assert_str_eq(view.kind, "vllm");
    cr_assert_str_eq(view.private_reason, "");
    cr_assert_str_eq(view.model, "m");
    cr_assert_eq(view.own_world_size, 4);
    cr_assert_eq(view.max_model_len, 77);
    close_rig(&rig);
}

Test(driver, verbs_become_sglangs_calls)
{
    struct rig rig;
    open_rig(&rig, true);
    expect_calls(&rig, "pause keep", "/pause_generation{\"mode\":\"in_place\"}");
    expect_calls(&rig, "resume", "/continue_generation{}");
    expect_calls(&rig, "sleep 1 keep",
                 "/pause_generation{\"mode\":\"in_place\"} "
                 "/pause_generation{\"mode\":\"retract\"} /flush_cache "
                 "/release_memory_occupation{\"tags\":[\"weights\",\"kv_cache\"]}");
    expect_calls(&rig, "sleep 2", "/pause_generation{\"mode\":\"retract\"} /flush_cache");
    expect_calls(&rig, "wake weights", "/resume_memory_occupation{\"tags\":[\"weights\"]}");
    expect_calls(&rig, "wake",
                 "/resume_memory_occupation{\"tags\":[\"kv_cache\"]} /continue_generation{}");
    rig.server.running = 1;
    struct told *told = world_start(&rig.w, "pause wait");
    sim_advance(&rig.w.sim, 1000);
    cr_assert(told->times == 0 && !rig.server.paused); /* it is let run, and looked at */
    rig.server.running = 0;
    world_await(&rig.w, told);
    cr_assert(told->status == KVB_OK && rig.server.paused);
    close_rig(&rig);
}

Test(driver, what_a_connector_of_its_own_shares_is_cleared_with_it)
{
    struct rig rig;
    open_as(&rig, false);
    rig.server.connector = true;
    attach(&rig);
    (void)world_do(&rig.w, "reset");
    rig.server.ncalls = 0;
    expect_calls(&rig, "reset", "/reset_prefix_cache?reset_running_requests=false");
    expect_calls(&rig, "reset external",
                 "/reset_prefix_cache?reset_running_requests=false&reset_external=true");
    close_rig(&rig);
}

Test(driver, a_reset_is_judged_by_what_the_version_tells)
{
    for (int old = 0; old < 2; old++) {
        struct rig rig;
        open_as(&rig, false);
        rig.server.old = old;
        attach(&rig);
        cr_assert_eq(world_do(&rig.w, "reset")->status, KVB_OK);
        rig.server.running = 2;
        struct told *told = world_do(&rig.w, "reset");
        cr_assert_eq(told->status, KVB_ERR_BUSY);
        cr_assert_eq(told->blocks_held, old ? 2 : 1);
        close_rig(&rig);
    }
}

Test(driver, a_reset_that_was_refused_is_done_when_nothing_runs)
{
    struct rig rig;
    open_rig(&rig, false);
    rig.server.json_of_relay = "{\"message\":\"ok\"}";
    rig.server.running = 1;
    cr_assert_eq(world_do(&rig.w, "update v=2")->status, KVB_OK); /* leaves what it has cached */
    sim_advance(&rig.w.sim, 5000);
    cr_assert(!world_view(&rig.w).open);
    rig.server.running = 0;
    sim_advance(&rig.w.sim, 5000);
    cr_assert(world_view(&rig.w).open);
    close_rig(&rig);
}

Test(driver, what_a_version_has_not_is_refused_before_anything_is_given_up)
{
    struct rig rig;
    open_as(&rig, false);
    rig.server.aug = true;
    attach(&rig);
    struct told *told = world_do(&rig.w, "release");
    cr_assert_eq(told->status, KVB_ERR_BAD_STATE);
    cr_assert(strstr(told->message, "has no /release_kv_cache_memory") != NULL, "%s",
              told->message);
    cr_assert(world_view(&rig.w).ready && !rig.server.paused);
    told = world_do(&rig.w, "occupation weights");
    cr_assert_eq(told->status, KVB_ERR_BAD_STATE);
    cr_assert(strstr(told->message, "only together") != NULL, "%s", told->message);
    cr_assert_eq(world_do(&rig.w, "sleep 1")->status, KVB_OK);
    cr_assert_eq(world_do(&rig.w, "wake weights")->status, KVB_OK);
    cr_assert_eq(world_do(&rig.w, "sleep 1")->status, KVB_OK); /* which it would not heed */
    cr_assert_eq(rig.server.here, 0);
    cr_assert_eq(world_do(&rig.w, "wake")->status, KVB_OK);
    cr_assert(rig.server.here == ALL && !rig.server.paused);
    close_rig(&rig);
}

Test(driver, a_drain_is_taken_back_by_resume)
{
    struct rig rig;
    open_rig(&rig, false);
    rig.server.running = 1;
    struct told *pause = world_start(&rig.w, "pause wait");
    sim_advance(&rig.w.sim, 10000);
    cr_assert_eq(pause->times, 0);
    struct told *resume = world_do(&rig.w, "resume");
    cr_assert_eq(resume->status, KVB_OK);
    world_await(&rig.w, pause);
    cr_assert_eq(pause->status, KVB_ERR_CANCELED);
    cr_assert(!rig.server.paused && world_view(&rig.w).ready);
    rig.server.running = 0;
    sim_advance(&rig.w.sim, 1000); /* what was abandoned there ends */
    close_rig(&rig);
}

Test(driver, a_drain_has_its_bound_and_the_server_serves_on)
{
    struct rig rig;
    open_rig(&rig, false);
    rig.server.running = 1;
    uint64_t began_ns = rig.w.sim.now_ns;
    struct told *told = world_do(&rig.w, "sleep 1 wait");
    cr_assert_eq(told->status, KVB_ERR_TIMEOUT);
    cr_assert_leq(rig.w.sim.now_ns - began_ns, 500 * KVB_NS_PER_S);
    rig.server.running = 0;
    sim_advance(&rig.w.sim, 60000);
    cr_assert(world_view(&rig.w).ready && rig.server.here == ALL && !rig.server.paused);
    close_rig(&rig);
}

Test(driver, one_that_sleeps_or_is_paused_attaches_as_it_is)
{
    for (unsigned level = 0; level <= 2; level++) {
        struct rig rig;
        open_as(&rig, false);
        rig.server.paused = true;
        rig.server.level = level;
        rig.server.here = level > 0 ? 0 : ALL;
        attach(&rig);
        struct kvp_view view = world_view(&rig.w);
        cr_assert(view.is_paused && view.is_sleeping == (level > 0));
        cr_assert_eq(view.tags[0].residency, level == 0   ? KVB_RESIDENT
                                             : level == 1 ? KVB_OFFLOADED
                                                          : KVB_DISCARDED);
        cr_assert_eq(world_do(&rig.w, level > 0 ? "wake" : "resume")->status, KVB_OK);
        cr_assert(rig.server.here == ALL && !rig.server.paused);
        close_rig(&rig);
    }
}

Test(driver, health_decides_who_is_there)
{
    struct rig rig;
    open_rig(&rig, false);
    rig.server.healthy = false;
    sim_advance(&rig.w.sim, 2500);
    cr_assert(!is_attached(&rig)); /* 503: at once */
    rig.server.healthy = true;
    attach(&rig);
    rig.server.alive = false;
    sim_advance(&rig.w.sim, 2500);
    cr_assert(!is_attached(&rig)); /* nobody listens: at once */
    rig.server.alive = true;
    attach(&rig);
    rig.server.dev_mode = false; /* not asked again while it is there */
    sim_advance(&rig.w.sim, 60000);
    cr_assert(is_attached(&rig));
    die(&rig.server);
    sim_advance(&rig.w.sim, 60000);
    cr_assert(!is_attached(&rig));
    rig.server.dev_mode = true;
    attach(&rig);
    close_rig(&rig);
}

Test(driver, what_somebody_else_does_to_it_is_seen)
{
    struct rig rig;
    open_rig(&rig, false);
    rig.server.paused = true;
    rig.server.here = 0;
    rig.server.level = 1;
    sim_advance(&rig.w.sim, 10000);
    struct kvp_view view = world_view(&rig.w);
    cr_assert(view.attached && view.is_sleeping && !view.ready);
    cr_assert_eq(world_do(&rig.w, "wake")->status, KVB_OK);
    rig.server.paused = true;
    sim_advance(&rig.w.sim, 10000);
    view = world_view(&rig.w);
    cr_assert(view.attached && view.is_paused && !view.is_sleeping);
    close_rig(&rig);
}

Test(driver, one_of_sglangs_that_was_only_not_reached_is_what_it_was)
{
    for (int deaf = 0; deaf < 2; deaf++) {
        struct rig rig;
        open_rig(&rig, true);
        cr_assert_eq(world_do(&rig.w, "sleep 1")->status, KVB_OK);
        rig.server.healthy = deaf;
        rig.server.deaf = deaf;
        sim_advance(&rig.w.sim, 60000);
        cr_assert(!is_attached(&rig));
        rig.server.healthy = true;
        rig.server.deaf = false;
        attach(&rig);
        cr_assert(world_view(&rig.w).is_sleeping);
        cr_assert_eq(world_do(&rig.w, "wake")->status, KVB_OK);
        cr_assert_eq(rig.server.here, ALL);
        close_rig(&rig);
    }
}

/* /resume would go to memory that is not there, which the server asserts. */
Test(driver, one_that_does_not_tell_whether_it_sleeps_is_not_taken_to_be_awake)
{
    for (int aug = 0; aug < 2; aug++) {
        struct rig rig;
        open_as(&rig, false);
        rig.server.paused = true;
        rig.server.level = 1;
        rig.server.aug = aug;
        rig.server.here = aug ? WEIGHTS : 0;
        rig.server.no_gauge = !aug;
        attach(&rig);
        (void)world_do(&rig.w, "resume");
        (void)world_do(&rig.w, "wake");
        cr_assert_eq(world_do(&rig.w, "resume")->status, KVB_OK);
        cr_assert(rig.server.here == ALL && !rig.server.paused);
        close_rig(&rig);
    }
}

Test(driver, relays_go_to_the_route_of_that_name)
{
    static const struct {
        const char *words, *call;
        bool sglang;
    } relays[] = {
        {"relay method=init_weight_transfer_engine", "/init_weight_transfer_engine", false},
        {"relay method=collective_rpc:ping", "/collective_rpc", false},
        {"relay method=abort_request", "/abort_requests{}", false},
        {"relay method=abort_requests", "/abort_request{\"rid\":\"\",\"abort_all\":true}", true},
        {"relay method=load_lora_adapter", "/v1/load_lora_adapter", false},
        {"relay method=load_lora_adapter", "/load_lora_adapter", true},
        {"relay method=weights_checker", "/weight_checker", false},
        {"start", "/start_weight_update", false},
        {"start", "", true},
        {"relay method=reset_mm_cache", "", true},
        {"relay method=health_generate", "/health_generate", true},
    };
    for (size_t i = 0; i < sizeof relays / sizeof relays[0]; i++) {
        struct rig rig;
        open_rig(&rig, relays[i].sglang);
        rig.server.json_of_relay = "{\"message\":\"ok\"}";
        sim_settle(&rig.w.sim);
        struct told *told = world_do(&rig.w, relays[i].words);
        cr_assert_eq(told->status, KVB_OK, "%s: %s", relays[i].words, told->message);
        char first[256] = "";
        if (rig.server.ncalls > 0) {
            snprintf(first, sizeof first, "%s%s", rig.server.calls[0], rig.server.bodies[0]);
        }
        if (relays[i].call[0] != '\0') {
            cr_assert_str_eq(first, relays[i].call, "%s", relays[i].words);
        } else {
            cr_assert(strstr(first, "reset") != NULL || strstr(first, "flush") != NULL ||
                          first[0] == '\0',
                      "%s: %s", relays[i].words, first);
        }
        close_rig(&rig);
    }
}

Test(driver, what_it_has_no_route_for_is_unsupported)
{
    struct rig rig;
    open_rig(&rig, false);
    cr_assert_eq(world_do(&rig.w, "relay method=update_weights_from_tensor")->status,
                 KVB_ERR_UNSUPPORTED);
    cr_assert_eq(world_do(&rig.w, "relay method=health_generate")->status, KVB_ERR_UNSUPPORTED);
    rig.server.json_of_relay = "{\"success\":false,\"message\":\"no\"}";
    cr_assert_eq(world_do(&rig.w, "relay method=update_weights_from_tensor")->status,
                 KVB_ERR_REFUSED);
    close_rig(&rig);
}

/* ---- every failure at every call ---- */

static const char *const steps[] = {"pause clear",   "sleep 1",      "wake weights",
                                    "wake kv_cache", "sleep 2 keep", "wake"};

static bool unknown(const struct kvp_view *view)
{
    for (uint32_t i = 0; i < view->ntags; i++) {
        if (view->tags[i].residency == KVB_UNKNOWN) {
            return true;
        }
    }
    return false;
}

static bool serves(void *arg)
{
    struct rig *rig = arg;
    struct kvp_view view;
    return is_attached(rig) && kvp_fleet_view(rig->w.fleet, "a", &view) && view.ready;
}

/* What is told of its memory is so, or that it is not known. */
static void expect_true(struct rig *rig)
{
    struct kvp_view view;
    sim_advance(&rig->w.sim, 100);
    cr_assert(kvp_fleet_view(rig->w.fleet, "a", &view));
    for (uint32_t i = 0; i < view.ntags && view.attached; i++) {
        unsigned bit = strcmp(view.tags[i].tag, "weights") == 0 ? WEIGHTS : KV;
        cr_assert(view.tags[i].residency == KVB_UNKNOWN ||
                      (view.tags[i].residency == KVB_RESIDENT) == ((rig->server.here & bit) != 0),
                  "%s is told of wrongly", view.tags[i].tag);
    }
}

/* All steps; how many calls that were. */
static uint32_t play(struct rig *rig, enum fate fate, uint32_t at, uint32_t times)
{
    struct server *server = &rig->server;
    server->fate = fate;
    server->fail_at = at;
    server->fail_times = times;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        struct told *told = world_do(&rig->w, steps[i]);
        cr_assert(fate != FATE_NONE || told->status == KVB_OK, "%s: %s", steps[i], told->message);
        if (told->status != KVB_OK) { /* and says whose fault it is, and what it left */
            cr_assert_neq(told->message[0], '\0');
        }
        expect_true(rig);
    }
    return server->ncalls;
}

static void recover(struct rig *rig)
{
    struct server *server = &rig->server;
    server->fail_at = 0;
    sim_advance(&rig->w.sim, 2 * SLOW_MS); /* what is slow ends, what died is back */
    if (!is_attached(rig)) {
        attach(rig);
    }
    struct kvp_view view = world_view(&rig->w);
    if (server->sglang && unknown(&view)) { /* only a restart tells what is so */
        die(server);
        sim_advance(&rig->w.sim, 2 * RESTART_MS);
        attach(rig);
    }
    (void)world_do(&rig->w, "wake");
    (void)world_do(&rig->w, "resume");
    cr_assert(sim_run_until(&rig->w.sim, serves, rig, 600000));
    cr_assert(server->here == ALL && !server->paused);
    view = world_view(&rig->w);
    cr_assert(!view.is_sleeping && !view.is_paused && !view.degraded);
}

/* With KVPLANE_TEST_LOG, what the lines below are of. */
static void tell_case(uint32_t at, enum fate fate)
{
    if (getenv("KVPLANE_TEST_LOG") != NULL) {
        fprintf(stderr, "---- call %u, fate %d\n", at, (int)fate);
    }
}

static void fail_everywhere(bool is_sglang, bool aug, uint32_t times)
{
    struct rig rig;
    open_as(&rig, is_sglang);
    rig.server.aug = aug;
    attach(&rig);
    uint32_t n = play(&rig, FATE_NONE, 0, 0);
    close_rig(&rig);
    cr_assert_gt(n, 10);
    for (uint32_t at = 1; at <= n; at++) {
        for (enum fate fate = FATE_ERROR; fate < FATES; fate++) {
            open_as(&rig, is_sglang);
            rig.server.aug = aug;
            attach(&rig);
            tell_case(at, fate);
            (void)play(&rig, fate, at, times);
            recover(&rig);
            close_rig(&rig);
        }
    }
}

Test(driver, whatever_fails_once_of_vllm_it_serves_in_the_end_and_nothing_unsafe_is_sent)
{
    fail_everywhere(false, false, 1);
}
Test(driver, whatever_fails_once_of_an_older_vllm_it_serves_in_the_end)
{
    fail_everywhere(false, true, 1);
}
Test(driver, whatever_fails_for_a_while_of_vllm_it_serves_in_the_end)
{
    fail_everywhere(false, false, 6);
}
Test(driver, whatever_fails_of_sglang_it_serves_in_the_end_and_nothing_unsafe_is_sent)
{
    fail_everywhere(true, false, 1);
    fail_everywhere(true, false, 4);
}

Test(driver, whatever_becomes_of_a_release_of_kv_the_weights_stay)
{
    for (uint32_t at = 1; at <= 4; at++) {
        for (enum fate fate = FATE_ERROR; fate < FATES; fate++) {
            struct rig rig;
            open_rig(&rig, false);
            tell_case(at, fate);
            cr_assert_eq(world_do(&rig.w, "pause")->status, KVB_OK);
            rig.server.ncalls = 0;
            rig.server.fate = fate;
            rig.server.fail_at = at;
            rig.server.fail_times = 1;
            (void)world_do(&rig.w, "release");
            expect_true(&rig);
            for (uint32_t i = 0; i < rig.server.ncalls && i < CALLS_MAX; i++) {
                cr_assert_neq(strncmp(rig.server.calls[i], "/sleep", 6), 0);
            }
            recover(&rig);
            close_rig(&rig);
        }
    }
}

/* Rather than for what somebody else has done: it stays attached, and goes on. */
Test(driver, a_move_whose_answer_is_lost_is_asked_for)
{
    struct rig rig;
    open_rig(&rig, false);
    rig.server.fate = FATE_DONE_BREAK;
    rig.server.fail_at = 3;
    rig.server.fail_times = 1;
    cr_assert_eq(world_do(&rig.w, "sleep 1")->status, KVB_OK);
    cr_assert_eq(rig.server.here, 0);
    cr_assert_neq(strstr(rig.server.calls[2], "/sleep"), NULL);
    close_rig(&rig);
}

Test(driver, a_health_that_is_an_error_is_a_miss)
{
    static const unsigned answers[] = {404, 500, 502, 504};
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        struct rig rig;
        open_rig(&rig, false);
        rig.server.health = answers[i];
        sim_advance(&rig.w.sim, 2500);
        cr_assert(is_attached(&rig)); /* one may be of whatever is between */
        sim_advance(&rig.w.sim, 20000);
        cr_assert(!is_attached(&rig), "%u", answers[i]);
        rig.server.health = 0;
        attach(&rig);
        close_rig(&rig);
    }
}

/* SGLang's says so of a scheduler that is at work; vLLM's only of an engine that is dead. */
Test(driver, a_503_while_it_is_asked_something_is_forgiven_where_it_may_be_at_work)
{
    for (int is_sglang = 0; is_sglang < 2; is_sglang++) {
        struct rig rig;
        open_rig(&rig, is_sglang);
        rig.server.fate = FATE_SLOW;
        rig.server.fail_at = 3;
        rig.server.fail_times = 1;
        struct told *told = world_start(&rig.w, "sleep 1");
        sim_advance(&rig.w.sim, 1000);
        rig.server.healthy = false;
        sim_advance(&rig.w.sim, 20000);
        cr_assert_eq(is_attached(&rig), is_sglang == 1);
        rig.server.healthy = true;
        world_await(&rig.w, told);
        recover(&rig);
        close_rig(&rig);
    }
}

Test(driver, memory_is_not_moved_while_a_weight_update_is_open)
{
    for (int is_sglang = 0; is_sglang < 2; is_sglang++) {
        struct rig rig;
        open_rig(&rig, is_sglang);
        rig.server.json_of_relay = "{\"success\":true}";
        rig.server.fate = FATE_SLOW;
        rig.server.fail_at = 1;
        rig.server.fail_times = 1;
        cr_assert_eq(world_do(&rig.w, "update v=2")->status, KVB_ERR_TIMEOUT); /* but not there */
        struct told *told = world_do(&rig.w, "sleep 1");
        cr_assert_eq(told->status, KVB_ERR_BAD_STATE);
        cr_assert(strstr(told->message, "a weight update is still under way") != NULL, "%s",
                  told->message);
        cr_assert_eq(rig.server.here, ALL);
        sim_advance(&rig.w.sim, SLOW_MS); /* it ends */
        cr_assert_eq(world_do(&rig.w, "sleep 1")->status, KVB_OK);
        rig.server.ncalls = 0;
        cr_assert_eq(world_do(&rig.w, "relay method=collective_rpc:x")->status, KVB_ERR_TIMEOUT);
        told = world_start(&rig.w, "wake");
        sim_advance(&rig.w.sim, 10000);
        cr_assert_eq(rig.server.here, 0);
        recover(&rig);
        close_rig(&rig);
    }
}

Test(driver, a_wake_of_kv_that_fails_does_not_take_the_weights)
{
    for (int aug = 0; aug < 2; aug++) {
        for (enum fate fate = FATE_ERROR; fate <= FATE_DONE_ERROR; fate++) {
            struct rig rig;
            open_as(&rig, false);
            rig.server.aug = aug;
            attach(&rig);
            cr_assert_eq(world_do(&rig.w, "sleep 1")->status, KVB_OK);
            cr_assert_eq(world_do(&rig.w, "wake weights")->status, KVB_OK);
            rig.server.ncalls = 0;
            rig.server.fate = fate;
            rig.server.fail_at = 1;
            rig.server.fail_times = 1;
            (void)world_do(&rig.w, "wake kv_cache");
            expect_true(&rig);
            sim_advance(&rig.w.sim, 10000);
            for (uint32_t i = 0; i < rig.server.ncalls && i < CALLS_MAX; i++) {
                cr_assert_neq(strncmp(rig.server.calls[i], "/sleep", 6), 0, "fate %d", (int)fate);
            }
            recover(&rig);
            close_rig(&rig);
        }
    }
}

/* ---- the configuration ---- */

Test(driver, servers_are_named_as_configured_or_by_number)
{
    struct kvp_engine_spec specs[KVP_ENGINES_MAX];
    uint32_t n;
    char error[256];
    cr_assert_eq(kvp_engine_specs("vllm=http://h:1, sglang=p@https://[::1]:2/", specs, &n, error),
                 KVB_OK);
    cr_assert_eq(n, 2);
    cr_assert_str_eq(specs[0].name, "engine-0");
    cr_assert_str_eq(specs[1].name, "p");
    cr_assert_str_eq(specs[1].url, "https://[::1]:2");
    static const char *const wrong[] = {"h:1",
                                        "vllm=h:1",
                                        "vllm=http://",
                                        "trt=http://h",
                                        "vllm=http://h/path",
                                        "vllm=a b@http://h",
                                        "vllm=a@http://h,sglang=a@http://i",
                                        "vllm=http://h,vllm=http://h",
                                        "vllm=http://h,vllm=http://H",
                                        "vllm=http://u:p@h",
                                        ",",
                                        "vllm=http://:80"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_assert_eq(kvp_engine_specs(wrong[i], specs, &n, error), KVB_ERR_INVALID, "%s", wrong[i]);
    }
}
