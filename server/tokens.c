/* SPDX-License-Identifier: Apache-2.0 */
#include "tokens.h"

#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 2 * KVP_HTTP_TOKEN_MAX };

static kvb_status_t read_line(char *line, struct kvp_http_token *token, const char **why)
{
    static const char separators[] = " \t\r\n";
    char *state;
    const char *word = strtok_r(line, separators, &state);
    const char *secret = strtok_r(NULL, separators, &state);
    token->role = KVP_ROLE_ADMIN;
    if (secret == NULL && (strcmp(word, "read") == 0 || strcmp(word, "admin") == 0)) {
        *why = "a role without a token"; /* a template whose variable was empty */
        return KVB_ERR_INVALID;
    }
    if (secret == NULL) {
        secret = word;
    } else if (strcmp(word, "read") == 0) {
        token->role = KVP_ROLE_READ;
    } else if (strcmp(word, "admin") != 0) {
        *why = "a line is TOKEN, `admin TOKEN` or `read TOKEN`";
        return KVB_ERR_INVALID;
    }
    if (strtok_r(NULL, separators, &state) != NULL) {
        *why = "a token has no blanks";
        return KVB_ERR_INVALID;
    }
    if (strlen(secret) >= sizeof token->secret) {
        *why = "the token is too long";
        return KVB_ERR_INVALID;
    }
    (void)snprintf(token->secret, sizeof token->secret, "%s", secret);
    return KVB_OK;
}

/* fgets() does not say how long a line is, which a NUL would end for whoever reads it as text: a
 * token would be shorter than its file says. What is behind the line is newlines, from before. */
static bool has_nul(const char line[LINE_BYTES])
{
    const char *end = memchr(line, '\n', LINE_BYTES);
    bool ended = end != NULL && end + 1 < line + LINE_BYTES && end[1] == '\0';
    size_t len = ended         ? (size_t)(end + 1 - line)
                 : end != NULL ? (size_t)(end - 1 - line)
                               : LINE_BYTES - 1;
    return strlen(line) != len;
}

static char *next_line(FILE *file, char line[LINE_BYTES])
{
    memset(line, '\n', LINE_BYTES);
    return fgets(line, LINE_BYTES, file);
}

static bool skipped(const char *line)
{
    line += strspn(line, " \t\r\n");
    return *line == '\0' || *line == '#';
}

kvb_status_t kvp_tokens_read(const char *path, struct kvp_http_token tokens[KVP_HTTP_TOKENS_MAX],
                             uint32_t *ntokens_p, char *error)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "token-file: %s: %s", path, strerror(errno));
        return KVB_ERR_IO;
    }
    struct kvp_http_token read[KVP_HTTP_TOKENS_MAX] = {0};
    char line[LINE_BYTES];
    const char *why = NULL;
    uint32_t n = 0;
    uint32_t number = 0;
    while (why == NULL && next_line(file, line) != NULL) {
        number++;
        if (has_nul(line)) {
            why = "the line has a NUL";
        } else if (strchr(line, '\n') == NULL && !feof(file)) {
            why = "the line is too long";
        } else if (skipped(line)) {
            continue;
        } else if (n == KVP_HTTP_TOKENS_MAX) {
            why = "too many tokens";
        } else if (read_line(line, &read[n], &why) == KVB_OK) {
            n++;
        }
    }
    if (why == NULL && ferror(file)) {
        why = "cannot be read";
    } else if (why == NULL && n == 0) {
        why = "has no token";
    }
    (void)fclose(file);
    if (why == NULL) {
        memcpy(tokens, read, n * sizeof read[0]);
        *ntokens_p = n;
    }
    explicit_bzero(read, sizeof read);
    explicit_bzero(line, sizeof line);
    if (why != NULL) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "token-file: %s, line %u: %s", path, number,
                       why);
        return KVB_ERR_INVALID;
    }
    return KVB_OK;
}
