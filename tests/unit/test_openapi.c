/* SPDX-License-Identifier: Apache-2.0 */
/* The contract against the tables, in both directions. Reads the YAML that is in the program, line
 * by line: api/openapi.yaml keeps to two spaces of indentation, and this test notices if not. */
#include "control/probes.h"
#include "http/params.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#define PARAMETER_REF "- $ref: '#/components/parameters/"

struct operation {
    char path[128];
    char method[8];
    char id[64];
    uint32_t params; /* as in the table */
    bool in_path;    /* has {name} or {id} */
    bool prefer;
    bool body;
    bool success; /* documents 200 */
};

static struct operation operations[64];
static uint32_t noperations;
static char declared[64][64]; /* names under components/parameters */
static uint32_t ndeclared;

static size_t indent(const char *line)
{
    return strspn(line, " ");
}

static void take_parameter(struct operation *operation, const char *name)
{
    if (strcmp(name, "instance") == 0) {
        operation->params |= KVP_TAKES_INSTANCE;
        return;
    }
    if (strcmp(name, "name") == 0 || strcmp(name, "id") == 0) {
        operation->in_path = true;
        return;
    }
    if (strcmp(name, "prefer") == 0) {
        operation->prefer = true;
        return;
    }
    for (uint32_t i = 0; i < KVP_PARAM_COUNT; i++) {
        if (strcmp(name, kvp_param_name(i)) == 0) {
            operation->params |= 1u << i;
            return;
        }
    }
    cr_assert_fail("%s: parameter %s is in no table", operation->id, name);
}

static void read_line(char *line)
{
    static char section[64], path[128], component[64];
    struct operation *operation = noperations > 0 ? &operations[noperations - 1] : NULL;
    char *text = line + indent(line);

    if (*text == '\0' || *text == '#') {
        return;
    }
    if (indent(line) == 0) {
        snprintf(section, sizeof section, "%.*s", (int)strcspn(line, ":"), line);
    } else if (strcmp(section, "components") == 0) {
        if (indent(line) == 2) {
            snprintf(component, sizeof component, "%.*s", (int)strcspn(text, ":"), text);
        } else if (indent(line) == 4 && strcmp(component, "parameters") == 0) {
            snprintf(declared[ndeclared++], 64, "%.*s", (int)strcspn(text, ":"), text);
        }
    } else if (strcmp(section, "paths") != 0) {
        return;
    } else if (indent(line) == 2) {
        snprintf(path, sizeof path, "%.*s", (int)strcspn(text, ":"), text);
    } else if (indent(line) == 4) {
        operation = &operations[noperations++];
        snprintf(operation->path, sizeof operation->path, "%s", path);
        snprintf(operation->method, sizeof operation->method, "%.*s", (int)strcspn(text, ":"),
                 text);
    } else if (strncmp(text, "operationId: ", 13) == 0) {
        snprintf(operation->id, sizeof operation->id, "%s", text + 13);
    } else if (strncmp(text, PARAMETER_REF, strlen(PARAMETER_REF)) == 0) {
        text += strlen(PARAMETER_REF);
        text[strcspn(text, "'")] = '\0';
        take_parameter(operation, text);
    } else if (strncmp(text, "requestBody:", 12) == 0) {
        operation->body = true;
    } else if (strncmp(text, "'200':", 6) == 0) {
        operation->success = true;
    }
}

static void read_contract(void)
{
    size_t len = (size_t)(kvp_openapi_end - kvp_openapi);
    char *copy = strndup(kvp_openapi, len);
    char *rest = copy;
    char *line;

    while ((line = strsep(&rest, "\n")) != NULL) {
        read_line(line);
    }
    free(copy);
}

TestSuite(openapi, .init = read_contract);

Test(openapi, every_route_is_in_the_contract_and_nothing_else)
{
    cr_expect_eq(noperations, KVP_ROUTE_COUNT);
    for (uint32_t i = 0; i < KVP_ROUTE_COUNT; i++) {
        const struct kvp_route *route = &kvp_routes[i];
        const struct operation *found = NULL;
        for (uint32_t j = 0; j < noperations; j++) {
            if (strcmp(operations[j].id, route->operation) == 0) {
                cr_expect_null(found, "%s is there twice", route->operation);
                found = &operations[j];
            }
        }
        cr_assert_not_null(found, "%s is not in the contract", route->operation);
        cr_expect_str_eq(found->path, route->path);
        cr_expect_str_eq(found->method, route->method == KVP_GET ? "get" : "post");
        cr_expect(found->success, "%s: no 200", route->operation);
        cr_expect_eq(found->body, route->method == KVP_POST, "%s: body", route->operation);
        cr_expect_eq(found->in_path, strchr(route->path, '{') != NULL, "%s", route->operation);
    }
}

Test(openapi, every_operation_has_the_parameters_that_its_route_reads)
{
    for (uint32_t i = 0; i < noperations; i++) {
        for (uint32_t j = 0; j < KVP_ROUTE_COUNT; j++) {
            if (strcmp(operations[i].id, kvp_routes[j].operation) == 0) {
                cr_expect_eq(operations[i].params, kvp_routes[j].params,
                             "%s: %#x in the contract, %#x in the table", operations[i].id,
                             operations[i].params, kvp_routes[j].params);
            }
        }
    }
}

Test(openapi, every_parameter_is_declared_and_read_somewhere)
{
    uint32_t read = 0;

    for (uint32_t i = 0; i < KVP_ROUTE_COUNT; i++) {
        read |= kvp_routes[i].params;
    }
    cr_expect_eq(read, (KVP_TAKES_INSTANCE << 1) - 1);
    for (uint32_t i = 0; i < KVP_PARAM_COUNT; i++) {
        bool found = false;
        for (uint32_t j = 0; j < ndeclared; j++) {
            found |= strcmp(declared[j], kvp_param_name(i)) == 0;
        }
        cr_expect(found, "%s is not declared", kvp_param_name(i));
    }
    cr_expect_eq(ndeclared, KVP_PARAM_COUNT + 4); /* instance, prefer, name, id */
}
