/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef CUresult (*get_address_fn)(const char *symbol, void **address, int version,
                                   cuuint64_t flags, CUdriverProcAddressQueryResult *found);

enum need { OPTIONAL, NEEDED };

static kvb_status_t refuse(char why[256], kvb_status_t status, const char *what, const char *detail)
{
    (void)snprintf(why, 256, "%s%s%s", what, detail[0] != '\0' ? ": " : "", detail);
    return status;
}

/* POSIX lets a data pointer be one to a function; C does not. */
static bool look_up(get_address_fn get, const char *name, int version, void *member)
{
    void *address = NULL;
    CUdriverProcAddressQueryResult found = 0;
    bool ok =
        get(name, &address, version, 0, &found) == CUDA_SUCCESS && found == 0 && address != NULL;
    if (!ok) {
        address = NULL;
    }
    memcpy(member, &address, sizeof address);
    return ok;
}

void kvt_cu_error_text(const struct kvt_cu *cu, CUresult result, char *out, size_t cap)
{
    const char *name = NULL;
    const char *text = NULL;
    (void)cu->error_name(result, &name);
    (void)cu->error_string(result, &text);
    (void)snprintf(out, cap, "%s (%s)", name != NULL ? name : "unknown error",
                   text != NULL ? text : "no text");
}

bool kvt_cu_poisons(CUresult result)
{
    /* cuda.h: "leaves the process in an inconsistent state and any further CUDA work will return
     * the same error". 214: an uncorrectable memory error; 220: one of NVLink; 226: contained. */
    int n = (int)result;
    return n == 214 || n == 220 || n == 226 || n == 700 || (n >= 702 && n <= 703) || n == 709 ||
           n == 710 || (n >= 714 && n <= 719) || n == 721;
}

static kvb_status_t start(struct kvt_cu *cu, char why[256])
{
    char text[160];
    CUresult result = cu->init(0);
    if (result == CUDA_SUCCESS) {
        result = cu->driver_version(&cu->version);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->device_count(&cu->ndevices);
    }
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && cu->ndevices == 0)) {
        return refuse(why, KVB_ERR_UNAVAILABLE, "the CUDA driver finds no device", "");
    }
    if (result == CUDA_ERROR_STUB_LIBRARY) {
        return refuse(why, KVB_ERR_UNSUPPORTED,
                      "what is found as " KVT_CU_LIBRARY " is the toolkit's stub, not a driver",
                      "");
    }
    if (result != CUDA_SUCCESS) {
        kvt_cu_error_text(cu, result, text, sizeof text);
        return refuse(why, KVB_ERR_UNSUPPORTED, "the CUDA driver does not start", text);
    }
    return KVB_OK;
}

kvb_status_t kvt_cu_open(const char *library, struct kvt_cu *cu_p, char why[256])
{
    void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        const char *error = dlerror();
        return refuse(why, KVB_ERR_NOT_FOUND, "no CUDA driver", error != NULL ? error : library);
    }
    /* Never closed again: threads of the driver may run in it by now. */
    get_address_fn get;
    void *address = dlsym(lib, "cuGetProcAddress_v2");
    if (address == NULL) {
        return refuse(why, KVB_ERR_UNSUPPORTED, "the CUDA driver is older than 12.0", "");
    }
    memcpy(&get, &address, sizeof get);

    struct kvt_cu cu = {0};
#define X(need, name, v, member, arguments)                                                        \
    if (!look_up(get, #name, v, &cu.member) && (need) == NEEDED) {                                 \
        return refuse(why, KVB_ERR_UNSUPPORTED, "the CUDA driver lacks a call", #name);            \
    }
    KVT_CU_CALLS(X)
#undef X
    kvb_status_t status = start(&cu, why);
    if (status == KVB_OK) {
        *cu_p = cu;
    }
    return status;
}
