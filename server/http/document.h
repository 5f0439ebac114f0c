/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_DOCUMENT_H
#define SERVER_HTTP_DOCUMENT_H

/*
 * Bytes that are in the program, up to end, and are sent as they are: with an ETag, so that who has
 * them already gets 304, and with headers that let a browser run nothing in them but what comes
 * from here, show them in no frame, and tell nobody where it was.
 */
struct kvp_document {
    const char *name; /* what the {…} of its route stands for; "": of the route without one */
    const char *content_type;
    const char *begin;
    const char *end;
};

#endif
