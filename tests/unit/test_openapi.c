/* SPDX-License-Identifier: Apache-2.0 */
/* The contract against the tables, in both directions. Reads the YAML that is in the program, line
 * by line: api/openapi.yaml keeps to two spaces of indentation, and this test notices if not. */
#include "control/probes.h"
#include "http/params.h"
#include "node/routes.h"

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

struct contract {
    const char *text;
    const char *end;
    const struct kvp_route_table *table;
    struct operation operations[128];
    uint32_t noperations;
    char declared[64][64]; /* names under components/parameters */
    uint32_t ndeclared;
};

static struct contract contracts[] = {
    {.text = kvp_openapi, .end = kvp_openapi_end, .table = &kvp_route_table},
    {.text = kvp_openapi_store, .end = kvp_openapi_store_end, .table = &kvp_store_route_table},
};
#define CONTRACTS (sizeof contracts / sizeof contracts[0])

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
    if (strcmp(name, "name") == 0 || strcmp(name, "id") == 0 || strcmp(name, "call") == 0) {
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

static void read_line(struct contract *contract, char *line)
{
    static char section[64], path[128], component[64];
    struct operation *operation =
        contract->noperations > 0 ? &contract->operations[contract->noperations - 1] : NULL;
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
            snprintf(contract->declared[contract->ndeclared++], 64, "%.*s", (int)strcspn(text, ":"),
                     text);
        }
    } else if (strcmp(section, "paths") != 0) {
        return;
    } else if (indent(line) == 2) {
        snprintf(path, sizeof path, "%.*s", (int)strcspn(text, ":"), text);
    } else if (indent(line) == 4) {
        operation = &contract->operations[contract->noperations++];
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

static void read_contracts(void)
{
    for (uint32_t i = 0; i < CONTRACTS; i++) {
        struct contract *contract = &contracts[i];
        char *copy = strndup(contract->text, (size_t)(contract->end - contract->text));
        char *rest = copy;
        char *line;
        while ((line = strsep(&rest, "\n")) != NULL) {
            read_line(contract, line);
        }
        free(copy);
    }
}

TestSuite(openapi, .init = read_contracts);

static void compare_routes(const struct contract *contract)
{
    cr_expect_eq(contract->noperations, contract->table->n);
    for (uint32_t i = 0; i < contract->table->n; i++) {
        const struct kvp_route *route = &contract->table->routes[i];
        const struct operation *found = NULL;
        for (uint32_t j = 0; j < contract->noperations; j++) {
            if (strcmp(contract->operations[j].id, route->operation) == 0) {
                cr_expect_null(found, "%s is there twice", route->operation);
                found = &contract->operations[j];
            }
        }
        cr_assert_not_null(found, "%s is not in the contract", route->operation);
        cr_expect_eq(route->id, i);
        cr_expect_str_eq(found->path, route->path);
        cr_expect_str_eq(found->method, route->method == KVP_GET ? "get" : "post");
        cr_expect(found->success, "%s: no 200", route->operation);
        cr_expect_eq(found->body, route->method == KVP_POST, "%s: body", route->operation);
        cr_expect_eq(found->in_path, strchr(route->path, '{') != NULL, "%s", route->operation);
        cr_expect_eq(found->params, route->params, "%s: %#x in the contract, %#x in the table",
                     found->id, found->params, route->params);
    }
}

Test(openapi, every_route_is_in_its_contract_with_its_parameters_and_nothing_else)
{
    for (uint32_t i = 0; i < CONTRACTS; i++) {
        compare_routes(&contracts[i]);
    }
}

Test(openapi, every_parameter_is_declared_where_it_is_read_and_read_somewhere)
{
    uint32_t read = 0;

    for (uint32_t i = 0; i < CONTRACTS; i++) {
        const struct contract *contract = &contracts[i];
        uint32_t here = 0;
        for (uint32_t j = 0; j < contract->table->n; j++) {
            here |= contract->table->routes[j].params;
        }
        for (uint32_t j = 0; j < KVP_PARAM_COUNT; j++) {
            bool found = false;
            for (uint32_t k = 0; k < contract->ndeclared; k++) {
                found |= strcmp(contract->declared[k], kvp_param_name(j)) == 0;
            }
            cr_expect_eq(found, (here & (1u << j)) != 0, "%s", kvp_param_name(j));
        }
        read |= here;
    }
    cr_expect_eq(read, (KVP_TAKES_INSTANCE << 1) - 1);
}
