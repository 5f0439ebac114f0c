/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_CALL_H
#define SERVER_CLI_CALL_H

#include <curl/curl.h>
#include <jansson.h>

#include <stdbool.h>

/* One call of the daemon's REST API after the other, for the client commands. */
enum {
    KVP_CLI_DONE = 0,
    KVP_CLI_REFUSED = 1,
    KVP_CLI_BAD_USAGE = 2,
    KVP_CLI_UNREACHABLE = 3,
    KVP_CLI_UNFINISHED = 4
};

struct kvp_call {
    CURL *curl;
    const char *base;
    const char *socket;  /* path of the Unix socket that it is reached by; NULL: none */
    const char *ca_file; /* whom a daemon's certificate may come from; NULL: the system's */
    const char *cert_file, *key_file; /* shown to a daemon; NULL: none */
    const char *token;                /* NULL: none */
    const char *header;               /* one more, of POSTs; NULL: none */
    bool quiet;                       /* what would be told on stderr is kept in trouble */
    /* Asked when there is something to read at watched, and ten times a second: true ends the call
     * that is under way. NULL: nothing does. */
    bool (*ends)(void);
    int watched;      /* -1: nothing */
    CURLM *multi;     /* made by the first call that can be ended; to be freed after curl */
    char where[1024]; /* base or socket, fit for a terminal */
    char trouble[1024];
    char why[CURL_ERROR_SIZE]; /* of libcurl, of the last one that failed; "": it did not say */
    char *answer;              /* of the last one, NUL-terminated; NULL: empty. malloc'd */
    size_t len;
};

/* What no option has said comes from the environment, or is as ever; told to curl. Once, before the
 * first call. */
void kvp_call_reach(struct kvp_call *call);
/* Where the daemon is, and why it could not be asked, for people. */
const char *kvp_call_where(const struct kvp_call *call);
void kvp_call_why(const struct kvp_call *call, CURLcode result, char *text, size_t cap);

/* Authorization, if there is a token, and one more (NULL: none); to be freed. */
struct curl_slist *kvp_call_headers(const struct kvp_call *call, const char *header);
/* DONE: *code_p is the HTTP status. Anything else was told on stderr. path: with its query. */
int kvp_call_send(struct kvp_call *call, bool post, const char *path, long *code_p);
/* Tells what the daemon said was wrong; REFUSED. */
int kvp_call_refused(struct kvp_call *call, long code);

/* An answer's object; NULL: *rc_p says why, it was told. */
json_t *kvp_call_fetch(struct kvp_call *call, const char *path, int *rc_p);

/* The same of a list, all of its pages in one; next is null then. list: the array in the answer;
 * path: with its query or without. */
json_t *kvp_call_fetch_all(struct kvp_call *call, const char *path, const char *list, int *rc_p);

/* All that status and top show, in one object: cluster, nodes, tenants, instances (of all daemons),
 * own_instances (in full). NULL: *rc_p says why, it was told. */
json_t *kvp_call_collect(struct kvp_call *call, int *rc_p);

/* `kvplane status`: cluster, nodes, tenants, instances, and the ranks of this daemon. */
int kvp_cli_overview(struct kvp_call *call, bool json);

#endif
