/* SPDX-License-Identifier: Apache-2.0 */
/* A token file: what is refused names the file and no token of it, and gives none. */
#include "config_values.h"
#include "fuzz.h"
#include "tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvp_http_token tokens[KVP_HTTP_TOKENS_MAX], before[KVP_HTTP_TOKENS_MAX];
    char error[KVP_CONFIG_ERROR_MAX] = "", path[32];
    uint32_t n = 77;
    int fd = fuzz_file(data, size, path);

    memset(tokens, 0x5a, sizeof tokens);
    memset(before, 0x5a, sizeof before);
    kvb_status_t status = kvp_tokens_read(path, tokens, &n, error);
    (void)close(fd);
    if (status != KVB_OK) {
        fuzz_told(error);
        kvb_assert(strstr(error, path) != NULL && n == 77);
        kvb_assert(memcmp(tokens, before, sizeof tokens) == 0);
        return 0;
    }
    kvb_assert(n > 0 && n <= KVP_HTTP_TOKENS_MAX);
    kvb_assert(memchr(data, '\0', size) == NULL); /* it would have cut a token */
    for (uint32_t i = 0; i < n; i++) {
        size_t len = strnlen(tokens[i].secret, sizeof tokens[i].secret);
        kvb_assert(len > 0 && len < sizeof tokens[i].secret);
        kvb_assert(len <= size);
    }
    return 0;
}
