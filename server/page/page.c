/* SPDX-License-Identifier: Apache-2.0 */
#include "page/page.h"

#include <stddef.h>
#include <string.h>

/* symbol, file, the name it is asked for by, type */
#define FILES(X)                                                                                   \
    X(index, "index.html", "", "text/html; charset=utf-8")                                         \
    X(style, "page.css", "page.css", "text/css; charset=utf-8")                                    \
    X(icon, "icon.svg", "icon.svg", "image/svg+xml")                                               \
    X(main, "main.js", "main.js", SCRIPT)                                                          \
    X(cards, "cards.js", "cards.js", SCRIPT)                                                       \
    X(client, "client.js", "client.js", SCRIPT)                                                    \
    X(diagram, "diagram.js", "diagram.js", SCRIPT)                                                 \
    X(dom, "dom.js", "dom.js", SCRIPT)                                                             \
    X(format, "format.js", "format.js", SCRIPT)                                                    \
    X(panels, "panels.js", "panels.js", SCRIPT)                                                    \
    X(series, "series.js", "series.js", SCRIPT)                                                    \
    X(verbs, "verbs.js", "verbs.js", SCRIPT)
#define SCRIPT "text/javascript; charset=utf-8"

#define X(symbol, file, name_, type)                                                               \
    __asm__(".pushsection .rodata\n"                                                               \
            ".global kvp_page_" #symbol "\n"                                                       \
            ".global kvp_page_" #symbol "_end\n"                                                   \
            ".hidden kvp_page_" #symbol "\n"                                                       \
            ".hidden kvp_page_" #symbol "_end\n"                                                   \
            "kvp_page_" #symbol ":\n"                                                              \
            ".incbin \"" KVP_PAGE_FOLDER "/" file "\"\n"                                           \
            "kvp_page_" #symbol "_end:\n"                                                          \
            ".byte 0\n"                                                                            \
            ".popsection\n");                                                                      \
    extern const char kvp_page_##symbol[];                                                         \
    extern const char kvp_page_##symbol##_end[];
FILES(X)
#undef X

static const struct kvp_document documents[] = {
#define X(symbol, file, name_, type)                                                               \
    {                                                                                              \
        .name = (name_),                                                                           \
        .content_type = (type),                                                                    \
        .begin = kvp_page_##symbol,                                                                \
        .end = kvp_page_##symbol##_end,                                                            \
    },
    FILES(X)
#undef X
};

const struct kvp_document *kvp_page_document(const char *name)
{
    for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++) {
        if (strcmp(documents[i].name, name) == 0) {
            return &documents[i];
        }
    }
    return NULL;
}
