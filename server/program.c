/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include "listen.h"
#include "metrics.h"
#include "tokens.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"

#include <ctype.h>
#include <errno.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    ENDPOINTS_MAX = 32,
    ALIVE_MS = 1000,        /* between two signs of life for a watchdog */
    MMAP_BYTES = 256 << 10, /* what is larger is given back when it is freed */
    /* Descriptors. */
    FDS_OWN = 128,     /* files, listeners, loops and threads, etcd, a dump */
    FDS_SESSION = 4,   /* of an engine's session: its socket, and memory that it hands over */
    FDS_NODE = 4,      /* lanes to a store node */
    FDS_UNPROVEN = 64, /* of each I/O thread, beside lanes-max */
    FDS_NODES = 256,   /* store nodes */
};

static kvb_status_t choose_fault(const char *fault)
{
    if (fault[0] == '\0') {
        return KVB_OK;
    }
#ifdef KVB_FAULTS
    kvb_status_t status = kvb_fault_choose(fault);
#else
    kvb_status_t status = KVB_ERR_INVALID;
#endif
    if (status == KVB_OK) {
        KVB_LOG(WARN, "a protection is taken out: never serve like this", KVB_STR("fault", fault));
    } else {
        KVB_LOG(ERROR, "fault: no such switch in this build", KVB_STR("fault", fault));
    }
    return status;
}

kvb_status_t kvp_program_begin(const char *log_level, const char *log_format, const char *fault)
{
    enum kvb_log_level level = KVB_LOG_INFO;
    bool known = kvb_log_parse_level(log_level, &level);
    kvb_assert(known); /* one of the words of its list */
    bool json = strcmp(log_format, "json") == 0;
    kvb_log_setup(level, json ? KVB_LOG_JSON : KVB_LOG_LOGFMT, STDERR_FILENO);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* fewer connections then, nothing worse */
    }
    (void)signal(SIGPIPE, SIG_IGN);
    /* Bodies come large and in crowds. glibc would take the second crowd from arenas, by what it
     * has seen of the first, and something small then keeps all of that for ever. */
    (void)mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, 4 * MMAP_BYTES);
    return choose_fault(fault);
}

kvb_status_t kvp_program_memory(uint64_t bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0 && bytes / (uint64_t)page > (uint64_t)pages) {
        KVB_LOG(ERROR, "store-bytes is more memory than this machine has",
                KVB_U64("store_bytes", bytes),
                KVB_U64("memory_bytes", (uint64_t)pages * (uint64_t)page));
        return KVB_ERR_NO_MEMORY;
    }
    return KVB_OK;
}

uint32_t kvp_program_descriptors(const struct kvp_cluster_config *config, uint32_t sessions)
{
    uint64_t n = FDS_OWN + (uint64_t)sessions * FDS_SESSION;
    if (config->cluster_listen[0] != '\0') {
        n += config->io_threads * (config->lanes_max + FDS_UNPROVEN);
    }
    if (config->etcd[0] != '\0') {
        n += FDS_NODES * FDS_NODE;
    }
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

void kvp_program_notify(const char *state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path == NULL ? 0 : strlen(path);
    if (len < 2 || len >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) {
        return;
    }
    memcpy(address.sun_path, path, len);
    if (path[0] == '@') {
        address.sun_path[0] = '\0'; /* an abstract one */
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0) {
        KVB_LOG_LIMITED(WARN, "the service manager cannot be told", KVB_STR("state", state),
                        KVB_STR("NOTIFY_SOCKET", path), KVB_ERRNO(errno));
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

void kvp_program_alive(uint64_t now_ns, uint64_t *told_ns)
{
    if (now_ns - *told_ns >= ALIVE_MS * KVB_NS_PER_MS && getenv("WATCHDOG_USEC") != NULL) {
        *told_ns = now_ns;
        kvp_program_notify("WATCHDOG=1");
    }
}

/* ---- addresses ---- */

static void join_address(const char *before, const char *host, uint16_t port,
                         char address[KVP_ADDRESS_MAX])
{
    bool bare = strchr(host, ':') == NULL;
    (void)snprintf(address, KVP_ADDRESS_MAX, bare ? "%s%s:%u" : "%s[%s]:%u", before, host, port);
}

kvb_status_t kvp_program_listen(const char *listen, int *fd_p, char address[KVP_ADDRESS_MAX])
{
    char host[KVB_LAYOUT_MAX];
    uint16_t port;
    kvb_status_t status = kvp_split_address(listen, host, sizeof host, &port);
    kvb_assert(status == KVB_OK); /* checked at start */
    status = kvp_listen(host, port, fd_p, &port);
    if (status == KVB_OK) {
        join_address("", host, port, address);
    }
    return status;
}

void kvp_program_record(const struct kvp_cluster_config *config, const char *listen,
                        uint64_t capacity_bytes, struct kvs_node_record *record_p)
{
    const char *address = config->advertise[0] != '\0' ? config->advertise : listen;
    *record_p = (struct kvs_node_record){.capacity_bytes = capacity_bytes};
    (void)snprintf(record_p->address, sizeof record_p->address, "%s", address);
    const char *name = config->node_name[0] != '\0' ? config->node_name : address;
    (void)snprintf(record_p->name, sizeof record_p->name, "%s", name);
    for (char *at = record_p->name; *at != '\0'; at++) { /* of an address: 10.0.0.1-8102 */
        *at = isalnum((unsigned char)*at) || strchr("._-", *at) != NULL ? *at : '-';
    }
    do {
        kvb_random_real.fill(kvb_random_real.ctx, &record_p->incarnation,
                             sizeof record_p->incarnation);
    } while (record_p->incarnation == 0);
}

/* ---- REST ---- */

static kvb_status_t read_tokens(const char *path, struct kvp_http_token *tokens,
                                uint32_t *ntokens_p)
{
    char error[KVP_CONFIG_ERROR_MAX];
    *ntokens_p = 0;
    if (path[0] == '\0') {
        return KVB_OK;
    }
    kvb_status_t status = kvp_tokens_read(path, tokens, ntokens_p, error);
    if (status != KVB_OK) {
        KVB_LOG(ERROR, error);
    }
    return status;
}

/* *tls_p: NULL where none is asked for. */
static kvb_status_t read_tls(const struct kvp_rest_config *rest, struct kvb_metrics *metrics,
                             struct kvp_tls **tls_p)
{
    const struct kvp_tls_files files = {.cert = rest->tls_cert_file,
                                        .key = rest->tls_key_file,
                                        .client_ca = rest->tls_client_ca_file};
    char error[KVP_TLS_ERROR_MAX];
    *tls_p = NULL;
    if (files.cert[0] == '\0') {
        return KVB_OK;
    }
    kvb_status_t status = kvp_tls_load(&files, (int64_t)time(NULL), tls_p, error);
    if (status != KVB_OK) {
        KVB_LOG(ERROR, error);
        return status;
    }
    kvb_series_set(kvb_series0(metrics, KVP_M_TLS_EXPIRY), (double)kvp_tls_expires(*tls_p));
    return KVB_OK;
}

static kvb_status_t start_tcp(struct kvp_rest *rest, struct kvp_http_config *http)
{
    char host[KVB_LAYOUT_MAX];
    kvb_status_t status = kvp_split_address(rest->config.listen, host, sizeof host, &http->port);
    kvb_assert(status == KVB_OK); /* checked at start */
    http->address = host;
    status = kvp_http_start(http, &rest->servers[rest->n]);
    if (status == KVB_OK) {
        join_address(http->tls != NULL ? "https://" : "http://", host,
                     kvp_http_port(rest->servers[rest->n]), rest->url);
        rest->n++;
    }
    return status;
}

static kvb_status_t start_unix(struct kvp_rest *rest, struct kvp_http_config *http)
{
    bool well_formed = kvp_parse_mode(rest->config.http_socket_mode, &http->unix_mode);
    kvb_assert(well_formed); /* checked at start */
    http->unix_path = rest->config.http_socket;
    http->tls = NULL;
    if (http->parsing_since_ns != NULL) {
        http->parsing_since_ns++;
    }
    kvb_status_t status = kvp_http_start(http, &rest->servers[rest->n]);
    if (status == KVB_OK && rest->n++ == 0) {
        (void)snprintf(rest->url, sizeof rest->url, "unix:%s", http->unix_path);
    }
    return status;
}

kvb_status_t kvp_rest_start(struct kvp_rest *rest, const struct kvp_rest_config *config,
                            const struct kvp_http_config *http, struct kvb_metrics *metrics)
{
    struct kvp_http_config each = *http;
    struct kvp_tls *tls = NULL;
    struct kvp_http_token *tokens = calloc(KVP_HTTP_TOKENS_MAX, sizeof *tokens);
    if (tokens == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *rest = (struct kvp_rest){.config = *config, .metrics = metrics};
    each.tokens = tokens;
    each.connections_max = (uint32_t)config->connections_max;
    each.servers = (config->listen[0] != '\0') + (uint32_t)(config->http_socket[0] != '\0');
    each.connections_per_ip_max = (uint32_t)config->connections_each_max;
    each.requests_each_max = config->requests_each_max != 0
                                 ? (uint32_t)config->requests_each_max
                                 : ((uint32_t)config->requests_max * 3 + 3) / 4;
    each.idle_timeout_s = (uint32_t)(config->idle_timeout / 1000);
    each.receive_timeout_s = (uint32_t)(config->receive_timeout / 1000);
    each.clock = &kvb_clock_real;
    each.random = &kvb_random_real;
    kvb_status_t status = read_tokens(config->token_file, tokens, &each.ntokens);
    if (status == KVB_OK) {
        status = read_tls(config, metrics, &tls);
        each.tls = tls;
    }
    if (status == KVB_OK && config->listen[0] != '\0') {
        status = start_tcp(rest, &each);
    }
    if (status == KVB_OK && config->http_socket[0] != '\0') {
        status = start_unix(rest, &each);
    }
    if (status != KVB_OK) {
        kvp_inbox_close(each.inbox); /* no loop answers what has come meanwhile */
        kvp_rest_stop(rest);
    }
    kvp_tls_put(tls);
    explicit_bzero(tokens, KVP_HTTP_TOKENS_MAX * sizeof *tokens);
    free(tokens);
    return status;
}

bool kvp_rest_started(const struct kvp_rest *rest)
{
    return rest->n > 0;
}

uint32_t kvp_rest_connections(const struct kvp_rest *rest)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < rest->n; i++) {
        sum += kvp_http_connections(rest->servers[i]);
    }
    return sum;
}

void kvp_rest_wake(const struct kvp_rest *rest, bool beat)
{
    for (uint32_t i = 0; i < rest->n; i++) {
        kvp_http_wake(rest->servers[i], beat);
    }
}

void kvp_rest_stop(struct kvp_rest *rest)
{
    while (rest->n > 0) {
        kvp_http_stop(rest->servers[--rest->n]);
    }
}

static kvb_status_t reload_tokens(struct kvp_rest *rest)
{
    struct kvp_http_token *tokens = calloc(KVP_HTTP_TOKENS_MAX, sizeof *tokens);
    uint32_t n = 0;
    kvb_status_t status =
        tokens == NULL ? KVB_ERR_NO_MEMORY : read_tokens(rest->config.token_file, tokens, &n);

    for (uint32_t i = 0; i < rest->n && status == KVB_OK; i++) {
        status = kvp_http_set_tokens(rest->servers[i], tokens, n);
    }
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "the tokens stay as they were", KVB_STATUS(status));
    } else {
        KVB_LOG(INFO, "tokens were read anew", KVB_U64("tokens", n));
    }
    if (tokens != NULL) {
        explicit_bzero(tokens, KVP_HTTP_TOKENS_MAX * sizeof *tokens);
        free(tokens);
    }
    return status;
}

static kvb_status_t reload_tls(struct kvp_rest *rest)
{
    struct kvp_tls *tls = NULL;
    kvb_status_t status = read_tls(&rest->config, rest->metrics, &tls);

    if (status != KVB_OK) {
        KVB_LOG(ERROR, "the TLS certificate stays as it was", KVB_STATUS(status));
        return status;
    }
    if (rest->config.listen[0] != '\0') { /* the first; a Unix socket has none */
        status = kvp_http_set_tls(rest->servers[0], tls);
        kvb_assert(status == KVB_OK);
    }
    KVB_LOG(INFO, "the TLS certificate was read anew",
            KVB_I64("expires_in_s", kvp_tls_expires(tls) - (int64_t)time(NULL)));
    kvp_tls_put(tls);
    return KVB_OK;
}

static void count_reload(struct kvb_metrics *metrics, const char *what, kvb_status_t status)
{
    const char *labels[] = {what, status == KVB_OK ? "ok" : "failed"};
    kvb_series_add(kvb_series(metrics, KVP_M_RELOADS, labels), 1);
}

void kvp_rest_reload(struct kvp_rest *rest)
{
    bool tokens = rest->config.token_file[0] != '\0';
    bool tls = rest->config.tls_cert_file[0] != '\0';

    if (tokens) {
        count_reload(rest->metrics, "tokens", reload_tokens(rest));
    }
    if (tls) {
        count_reload(rest->metrics, "certificate", reload_tls(rest));
    }
    if (!tokens && !tls) {
        KVB_LOG(INFO, "there is no token file and no certificate to be read anew");
    }
}

void kvp_program_audit(const struct kvp_http_answered *answered)
{
    char from[KVP_ADDRESS_MAX] = "-";
    char uid[16], pid[16];
    const struct ucred *peer = answered->peer;

    if (answered->route == NULL || answered->route->role != KVP_ROLE_ADMIN) {
        return;
    }
    if (peer != NULL) {
        (void)snprintf(from, sizeof from, "unix");
        (void)snprintf(uid, sizeof uid, "%u", (unsigned)peer->uid);
        (void)snprintf(pid, sizeof pid, "%d", (int)peer->pid);
    } else if (answered->from != NULL) {
        socklen_t len = answered->from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                              : sizeof(struct sockaddr_in);
        if (getnameinfo(answered->from, len, from, sizeof from, NULL, 0, NI_NUMERICHOST) != 0) {
            strcpy(from, "-");
        }
    }
    kvb_log_request(answered->request_id);
    KVB_LOG(INFO, "audit", KVB_STR("operation", answered->route->operation),
            KVB_STR("instance", answered->instance[0] != '\0' ? answered->instance : NULL),
            KVB_STR("from", from), KVB_STR("uid", peer != NULL ? uid : NULL),
            KVB_STR("pid", peer != NULL ? pid : NULL), KVB_U64("token", answered->token),
            KVB_U64("http_status", answered->http_status), KVB_MS("took", answered->took_ns));
    kvb_log_request(NULL);
}

/* ---- the cluster ---- */

kvb_status_t kvp_program_secret(const char *key, const char *path, char *out, size_t cap,
                                uint32_t *len_p)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        KVB_LOG(ERROR, "a file of the configuration cannot be read", KVB_STR("key", key),
                KVB_STR("path", path), KVB_ERRNO(errno));
        return KVB_ERR_IO;
    }
    size_t len = fread(out, 1, cap, file);
    bool failed = ferror(file) != 0;
    (void)fclose(file);
    while (len < cap && len > 0 && isspace((unsigned char)out[len - 1])) {
        len--;
    }
    if (failed || len == 0 || len == cap) {
        KVB_LOG(ERROR, "a file of the configuration is empty, too long or cannot be read",
                KVB_STR("key", key), KVB_STR("path", path), KVB_U64("bytes_max", cap - 1));
        return failed ? KVB_ERR_IO : KVB_ERR_INVALID;
    }
    *len_p = (uint32_t)len;
    return KVB_OK;
}

kvb_status_t kvp_program_bearer(const char *key, const char *path, char **authorization_p)
{
    char token[4096];
    uint32_t len = 0;
    char *authorization = NULL;
    kvb_status_t status =
        path[0] == '\0' ? KVB_OK : kvp_program_secret(key, path, token, sizeof token, &len);
    if (status == KVB_OK && len > 0) {
        token[len] = '\0';
        int line = (int)strcspn(token, "\r\n"); /* a header has one */
        status =
            asprintf(&authorization, "Bearer %.*s", line, token) < 0 ? KVB_ERR_NO_MEMORY : KVB_OK;
    }
    explicit_bzero(token, sizeof token);
    if (status == KVB_OK) {
        *authorization_p = authorization;
    }
    return status;
}

void kvp_program_bearer_free(char *authorization)
{
    if (authorization != NULL) {
        explicit_bzero(authorization, strlen(authorization));
        free(authorization);
    }
}

kvb_status_t kvp_program_common(const struct kvp_cluster_config *config,
                                struct kvt_peer_common *common_p)
{
    char secret[KVT_SECRET_MAX + 1];
    uint32_t len = 0;
    kvb_status_t status =
        config->secret_file[0] == '\0'
            ? KVB_OK
            : kvp_program_secret("secret-file", config->secret_file, secret, sizeof secret, &len);
    if (status == KVB_OK) {
        *common_p = (struct kvt_peer_common){.net = common_p->net, .secret_len = len};
        memcpy(common_p->secret, secret, len);
    }
    explicit_bzero(secret, sizeof secret);
    return status;
}

/* libcurl would find out, with each connection anew. */
static kvb_status_t check_readable(const char *key, const char *path)
{
    FILE *file = path[0] == '\0' ? NULL : fopen(path, "re");
    if (path[0] != '\0' && file == NULL) {
        KVB_LOG(ERROR, "a file of the configuration cannot be read", KVB_STR("key", key),
                KVB_STR("path", path), KVB_ERRNO(errno));
        return KVB_ERR_IO;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return KVB_OK;
}

static kvb_status_t check_etcd_files(const struct kvp_cluster_config *config)
{
    const struct {
        const char *key, *path;
    } files[] = {{"etcd-ca-file", config->etcd_ca_file},
                 {"etcd-cert-file", config->etcd_cert_file},
                 {"etcd-key-file", config->etcd_key_file}};
    kvb_status_t status = KVB_OK;
    for (size_t i = 0; i < sizeof files / sizeof files[0] && status == KVB_OK; i++) {
        status = check_readable(files[i].key, files[i].path);
    }
    return status;
}

kvb_status_t kvp_program_etcd(const struct kvp_cluster_config *config, uint64_t grace_ms,
                              const char *process, struct kvb_sched *sched, struct kvb_io *io,
                              struct kvs_coordinator **coordinator_p)
{
    char urls[ENDPOINTS_MAX][KVB_LAYOUT_MAX];
    const char *endpoints[ENDPOINTS_MAX];
    uint32_t n = 0;
    for (const char *at = config->etcd; *at != '\0'; n++) {
        if (n == ENDPOINTS_MAX) {
            KVB_LOG(ERROR, "etcd: too many endpoints", KVB_U64("limit", ENDPOINTS_MAX));
            return KVB_ERR_INVALID;
        }
        at = kvp_next_item(at, urls[n], sizeof urls[n]);
        endpoints[n] = urls[n];
    }
    kvb_status_t status = check_etcd_files(config);
    if (status != KVB_OK) {
        return status;
    }
    char password[256];
    if (config->etcd_password_file[0] != '\0') {
        uint32_t len;
        status = kvp_program_secret("etcd-password-file", config->etcd_password_file, password,
                                    sizeof password, &len);
        if (status != KVB_OK) {
            return status;
        }
        password[len] = '\0';
        password[strcspn(password, "\r\n")] = '\0';
    }
#define GIVEN(text) ((text)[0] != '\0' ? (text) : NULL)
    const struct kvs_etcd_config etcd = {
        .sched = sched,
        .io = io,
        .endpoints = endpoints,
        .nendpoints = n,
        .prefix = config->etcd_prefix,
        .user = GIVEN(config->etcd_user),
        .password = config->etcd_password_file[0] != '\0' ? password : NULL,
        .ca_file = GIVEN(config->etcd_ca_file),
        .cert_file = GIVEN(config->etcd_cert_file),
        .key_file = GIVEN(config->etcd_key_file),
        .request_ms = (uint32_t)config->etcd_bound,
        .lease_ms = (uint32_t)config->lease,
        .grace_ms = grace_ms,
        .process = process,
    };
#undef GIVEN
    status = kvs_etcd_create(&etcd, coordinator_p);
    explicit_bzero(password, sizeof password);
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "etcd cannot be used", KVB_STR("etcd", config->etcd), KVB_STATUS(status));
    }
    return status;
}
