/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_PAGE_PAGE_H
#define SERVER_PAGE_PAGE_H

#include "http/document.h"

/*
 * The status page, for people with a browser: index.html and what it needs, as they were when this
 * was built. It asks for nothing of another server; what it shows it reads by the REST API, like
 * any other client.
 */
/* By the name of its file; "": the page itself. NULL: there is none of that name. */
const struct kvp_document *kvp_page_document(const char *name);

#endif
