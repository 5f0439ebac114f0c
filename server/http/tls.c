/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libmicrohttpd keeps one set of credentials for as long as it runs. So each session gets ours
 * instead, when it begins (kvp_tls_begin): those that are current then, counted until its
 * connection is closed. What libmicrohttpd itself is given has no certificate at all.
 *
 * A client that shows a certificate that is not one of its authorities' is refused within the
 * handshake. One that shows none may ask what needs no token either, since kubelets have none to
 * show: probes. head.c refuses it the rest.
 */
#include "http/tls_session.h"

#include "base/log.h"

#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/x509.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CHAIN_MAX = 16 };

struct kvp_tls {
    atomic_uint references;
    /* immutable */
    gnutls_certificate_credentials_t credentials;
    int64_t expires_s;
    bool asks; /* clients for a certificate */
};

/* ---- the files ---- */

static kvb_status_t wrong(char *error, kvb_status_t status, const char *key, const char *path,
                          const char *why)
{
    (void)snprintf(error, KVP_TLS_ERROR_MAX, "%s: %.256s: %s", key, path, why);
    return status;
}

static kvb_status_t check_there(const char *key, const char *path, bool secret, char *error)
{
    struct stat found;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return wrong(error, KVB_ERR_IO, key, path, strerror(errno));
    }
    if (secret && fstat(fileno(file), &found) == 0 && (found.st_mode & S_IROTH) != 0) {
        KVB_LOG(WARN, "everybody on this machine may read the key", KVB_STR("key", key),
                KVB_STR("path", path));
    }
    (void)fclose(file);
    return KVB_OK;
}

/* The chain in cert's file and the key of its first; into credentials that have none yet. */
static kvb_status_t load_pair(struct kvp_tls *tls, const struct kvp_tls_files *files, int64_t now_s,
                              char *error)
{
    gnutls_x509_crt_t chain[CHAIN_MAX];
    unsigned n = CHAIN_MAX;
    gnutls_x509_privkey_t key = NULL;
    gnutls_datum_t text = {0};
    kvb_status_t status = KVB_ERR_INVALID;

    int rc = gnutls_load_file(files->cert, &text);
    if (rc == 0) {
        rc = gnutls_x509_crt_list_import(chain, &n, &text, GNUTLS_X509_FMT_PEM,
                                         GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);
        gnutls_free(text.data);
    }
    if (rc <= 0) {
        return wrong(error, KVB_ERR_INVALID, "tls-cert-file", files->cert,
                     rc == GNUTLS_E_SHORT_MEMORY_BUFFER ? "too many certificates"
                                                        : "holds no certificate in PEM");
    }
    tls->expires_s = INT64_MAX;
    for (unsigned i = 0; i < n; i++) {
        int64_t expires_s = gnutls_x509_crt_get_expiration_time(chain[i]);
        if (i > 0 && expires_s <= now_s) { /* an old root in a bundle: clients need not mind */
            KVB_LOG(WARN, "a certificate of the chain has expired", KVB_STR("path", files->cert),
                    KVB_U64("place", i + 1));
        } else if (expires_s < tls->expires_s) {
            tls->expires_s = expires_s;
        }
    }
    if (gnutls_x509_crt_get_expiration_time(chain[0]) <= now_s) {
        (void)wrong(error, status, "tls-cert-file", files->cert, "the certificate has expired");
        goto out;
    }
    if (gnutls_x509_crt_get_activation_time(chain[0]) > now_s) {
        KVB_LOG(WARN, "the certificate is not valid yet", KVB_STR("path", files->cert));
    }
    text = (gnutls_datum_t){0};
    rc = gnutls_load_file(files->key, &text);
    if (rc == 0) {
        rc = gnutls_x509_privkey_init(&key);
    }
    if (rc == 0) {
        rc = gnutls_x509_privkey_import2(key, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
    }
    if (text.data != NULL) {
        gnutls_memset(text.data, 0, text.size);
    }
    gnutls_free(text.data);
    if (rc != 0) {
        (void)wrong(error, status, "tls-key-file", files->key,
                    rc == GNUTLS_E_DECRYPTION_FAILED
                        ? "the key is encrypted; this program has no password"
                        : "holds no key in PEM");
        goto out;
    }
    rc = gnutls_certificate_set_x509_key(tls->credentials, chain, (int)n, key);
    if (rc < 0) {
        (void)wrong(error, status, "tls-key-file", files->key,
                    rc == GNUTLS_E_CERTIFICATE_KEY_MISMATCH
                        ? "the key is not that of the certificate in tls-cert-file"
                        : gnutls_strerror(rc));
        goto out;
    }
    status = KVB_OK;
out:
    gnutls_x509_privkey_deinit(key);
    for (unsigned i = 0; i < n; i++) {
        gnutls_x509_crt_deinit(chain[i]);
    }
    return status;
}

static kvb_status_t load_authorities(struct kvp_tls *tls, const char *path, char *error)
{
    if (path[0] == '\0') {
        return KVB_OK;
    }
    if (gnutls_certificate_set_x509_trust_file(tls->credentials, path, GNUTLS_X509_FMT_PEM) <= 0) {
        return wrong(error, KVB_ERR_INVALID, "tls-client-ca-file", path,
                     "holds no certificate in PEM");
    }
    tls->asks = true;
    return KVB_OK;
}

kvb_status_t kvp_tls_load(const struct kvp_tls_files *files, int64_t now_s, struct kvp_tls **tls_p,
                          char *error)
{
    struct kvp_tls *tls = calloc(1, sizeof *tls);
    (void)snprintf(error, KVP_TLS_ERROR_MAX, "%s", kvb_status_text(KVB_ERR_NO_MEMORY));
    if (tls == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    atomic_init(&tls->references, 1);
    if (gnutls_certificate_allocate_credentials(&tls->credentials) != 0) {
        free(tls);
        return KVB_ERR_NO_MEMORY;
    }
    kvb_status_t status = check_there("tls-cert-file", files->cert, false, error);
    if (status == KVB_OK) {
        status = check_there("tls-key-file", files->key, true, error);
    }
    if (status == KVB_OK && files->client_ca[0] != '\0') {
        status = check_there("tls-client-ca-file", files->client_ca, false, error);
    }
    if (status == KVB_OK) {
        status = load_pair(tls, files, now_s, error);
    }
    if (status == KVB_OK) {
        status = load_authorities(tls, files->client_ca, error);
    }
    if (status != KVB_OK) {
        kvp_tls_put(tls);
        return status;
    }
    *tls_p = tls;
    return KVB_OK;
}

struct kvp_tls *kvp_tls_get(struct kvp_tls *tls)
{
    atomic_fetch_add_explicit(&tls->references, 1, memory_order_relaxed);
    return tls;
}

void kvp_tls_put(struct kvp_tls *tls)
{
    /* The last one sees all that the others did with it. */
    if (tls != NULL && atomic_fetch_sub_explicit(&tls->references, 1, memory_order_acq_rel) == 1) {
        gnutls_certificate_free_credentials(tls->credentials);
        free(tls);
    }
}

int64_t kvp_tls_expires(const struct kvp_tls *tls)
{
    return tls->expires_s;
}

/* ---- a session ---- */

/* Of a client: within the handshake. */
static int verify(gnutls_session_t session)
{
    char oid[] = GNUTLS_KP_TLS_WWW_CLIENT;
    gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                     .data = (unsigned char *)oid};
    unsigned status = 0;

    if (!kvp_tls_shown(session)) {
        return 0;
    }
    int rc = gnutls_certificate_verify_peers(session, &purpose, 1, &status);
    if (rc != 0 || status != 0) {
        gnutls_datum_t why = {0};
        (void)gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &why, 0);
        KVB_LOG_LIMITED(WARN, "a client's certificate is refused",
                        KVB_STR("why", rc != 0 ? gnutls_strerror(rc) : (const char *)why.data));
        gnutls_free(why.data);
        return -1;
    }
    return 0;
}

int kvp_tls_begin(struct kvp_tls *tls, gnutls_session_t session)
{
    int rc = gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, tls->credentials);
    if (rc == 0 && tls->asks) {
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUEST);
        gnutls_session_set_verify_function(session, verify);
    }
    return rc;
}

bool kvp_tls_asks(const struct kvp_tls *tls)
{
    return tls->asks;
}

bool kvp_tls_shown(gnutls_session_t session)
{
    unsigned n = 0;
    return gnutls_certificate_get_peers(session, &n) != NULL && n > 0;
}
