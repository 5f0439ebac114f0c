/* SPDX-License-Identifier: Apache-2.0 */
#include "http/errors.h"

/*
 * Codes that clients act on: 400 their request is wrong and nothing happened; 404, 409 as HTTP says
 * (409 also for an operation that a /resume canceled); 503 try again later. Trainers retry 5xx and
 * give up on 4xx, so what heals by itself is never a 4xx but for 409, which comes with Retry-After
 * where waiting helps.
 */
#define ERROR_TABLE(X)                                                                             \
    /* status, HTTP code, Retry-After in seconds (0: none) */                                      \
    X(OK, 200, 0)                                                                                  \
    X(IN_PROGRESS, 202, 0)                                                                         \
    X(ERR_INVALID, 400, 0)                                                                         \
    X(ERR_NOT_FOUND, 404, 0)                                                                       \
    X(ERR_EXISTS, 409, 0)                                                                          \
    X(ERR_TOO_LARGE, 413, 0)                                                                       \
    X(ERR_UNSUPPORTED, 501, 0)                                                                     \
    X(ERR_BAD_STATE, 409, 1)                                                                       \
    X(ERR_BUSY, 409, 5)                                                                            \
    X(ERR_FENCED, 409, 1)                                                                          \
    X(ERR_TICKET, 500, 0)                                                                          \
    X(ERR_GENERATION, 500, 0)                                                                      \
    X(ERR_CHECKSUM, 500, 0)                                                                        \
    X(ERR_CLOSED, 409, 1)                                                                          \
    X(ERR_AGAIN, 503, 1)                                                                           \
    X(ERR_NO_SPACE, 503, 0)                                                                        \
    X(ERR_QUOTA, 503, 0)                                                                           \
    X(ERR_TIMEOUT, 503, 0)                                                                         \
    X(ERR_CANCELED, 409, 1)                                                                        \
    X(ERR_PROTOCOL, 502, 0)                                                                        \
    X(ERR_DISCONNECTED, 503, 0)                                                                    \
    X(ERR_UNAVAILABLE, 503, 0)                                                                     \
    X(ERR_REFUSED, 500, 0)                                                                         \
    X(ERR_DRAINING, 503, 1)                                                                        \
    X(ERR_NO_MEMORY, 503, 1)                                                                       \
    X(ERR_IO, 500, 0)                                                                              \
    X(ERR_LIMIT, 503, 1)                                                                           \
    X(ERR_INTERNAL, 500, 0)

unsigned kvp_error_http(kvb_status_t status)
{
    switch (status) { /* no default: a new status without a line here is a warning */
#define X(name, http, retry_s)                                                                     \
    case KVB_##name:                                                                               \
        return http;
        ERROR_TABLE(X)
#undef X
    }
    return 500;
}

unsigned kvp_error_retry_s(kvb_status_t status)
{
    switch (status) {
#define X(name, http, retry_s)                                                                     \
    case KVB_##name:                                                                               \
        return retry_s;
        ERROR_TABLE(X)
#undef X
    }
    return 0;
}

static const struct {
    unsigned http;
    const char *type;
} types[] = {
    {400, "BadRequestError"},
    {401, "UnauthorizedError"},
    {403, "ForbiddenError"},
    {404, "NotFoundError"},
    {405, "MethodNotAllowedError"},
    {409, "ConflictError"},
    {413, "ContentTooLargeError"},
    {414, "UriTooLongError"},
    {417, "ExpectationFailedError"},
    {431, "HeadersTooLargeError"},
    {500, "InternalServerError"},
    {501, "NotImplementedError"},
    {502, "BadGatewayError"},
    {503, "ServiceUnavailableError"},
    {505, "HttpVersionNotSupportedError"},
};

json_t *kvp_error_body(unsigned http_status, const char *param, const char *message)
{
    const char *type = "InternalServerError";

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].http == http_status) {
            type = types[i].type;
        }
    }
    return json_pack("{s:{s:s, s:s, s:s?, s:i}}", "error", "message", message, "type", type,
                     "param", param, "code", (int)http_status);
}
