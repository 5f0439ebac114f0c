// SPDX-License-Identifier: Apache-2.0
// node run.mjs judge.mjs API: contract.mjs takes every example of a response for one of its operation, and no longer
// when something of it is missing, is new, or is of another kind.
import { join } from 'node:path';
import { Contract } from './contract.mjs';

const ENGINES = 'result'; // what it says there is its own
const api = process.argv[2];
let examples = 0;
let mutants = 0;
const failed = [];

// Every object in value, with how to make a copy of the whole in which it is replaced.
function* objects(value, make = (v) => v) {
    if (value && typeof value === 'object') {
        if (!Array.isArray(value)) {
            yield [value, make];
        }
        for (const key of Object.keys(value).filter((k) => k !== ENGINES)) {
            yield* objects(value[key], (v) => make(Array.isArray(value)
                ? value.map((old, i) => (String(i) === key ? v : old)) : { ...value, [key]: v }));
        }
    }
}

// What is wrong about an answer that the contract must refuse, and that answer.
function* wrong(answer, needed) {
    const value = JSON.parse(answer.body);
    for (const [object, make] of objects(value)) {
        yield ['a member more', { ...answer, body: JSON.stringify(make({ ...object, undocumented: { undocumented: [] } })) }];
    }
    for (const key of Array.isArray(value) ? [] : Object.keys(value).filter((k) => k !== ENGINES)) {
        const { [key]: _, ...rest } = value;
        if (needed.includes(key)) {
            yield [`without ${key}`, { ...answer, body: JSON.stringify(rest) }];
        }
        yield [`${key} of another kind`, { ...answer, body: JSON.stringify({ ...value, [key]: { undocumented: [value[key]] } }) }];
    }
    yield ['another kind', { ...answer, body: '"text"' }];
    yield ['not JSON', { ...answer, body: answer.body.slice(0, -1) }];
    yield ['another type', { ...answer, headers: { ...answer.headers, 'content-type': 'text/html' } }];
    yield ['a header more', { ...answer, headers: { ...answer.headers, 'x-undocumented': '1' } }];
    yield ['no length', { ...answer, headers: { 'content-type': 'application/json' } }];
    yield ['no request id', { ...answer, id: false }];
    for (const status of [201, 204, 302, 410, 418, 504]) {
        yield [`status ${status}`, { ...answer, status }];
    }
}

// The members that a value may not do without.
function required(contract, schema, value) {
    const { required: own = [], allOf = [], anyOf = [] } = contract.resolve(schema);
    const chosen = anyOf.find((s) => contract.fits(s, value, '').length === 0);
    return [...own, ...[...allOf, ...(chosen ? [chosen] : [])].flatMap((s) => required(contract, s, value))];
}

for (const file of ['openapi.yaml', 'openapi-store.yaml']) {
    const contract = new Contract(join(api, file));
    for (const operation of contract.operations) {
        for (const [status, media] of contract.jsonAnswers(operation)) {
            if (contract.examples(media).length === 0) {
                failed.push(`${file}: ${operation.id} ${status}: no example of the answer`);
            }
            for (const example of contract.examples(media)) {
                const answer = { method: operation.method, target: operation.path.replace(/\{[^}]+\}/g, '1'), status,
                    headers: { 'content-type': 'application/json', 'content-length': '1' }, id: true,
                    body: JSON.stringify(example), length: 1, whole: true };
                const where = `${file}: ${operation.id} ${status}`;
                examples++;
                failed.push(...contract.judge(answer).map((w) => `${where}: the example ${answer.body}: ${w}`));
                for (const [what, mutant] of wrong(answer, required(contract, media.schema, example))) {
                    mutants++;
                    if (contract.judge(mutant).length === 0) {
                        failed.push(`${where}: taken although: ${what}: ${mutant.body}`);
                    }
                }
            }
        }
    }
    // Routes that are not there.
    const error = (code) => JSON.stringify({ error: { message: 'm', type: 't', param: null, code } });
    for (const [method, target, status, good] of [['GET', '/nowhere', 404, true], ['GET', '/nowhere', 200, false],
        ['GET', '/nowhere', 405, false], ['POST', '/health', 405, true], ['POST', '/health', 404, false],
        ['GET', '/health', 405, false], ['GET', '/health', 404, false], [null, null, 400, true], [null, null, 409, false]]) {
        const headers = { 'content-type': 'application/json', 'content-length': '1', allow: 'GET' };
        const words = contract.judge({ method, target, status, headers, id: true, body: error(status), length: 1, whole: true });
        if ((words.length === 0) !== good) {
            failed.push(`${file}: ${method} ${target} ${status}: ${good ? words : 'taken'}`);
        }
    }
}
failed.forEach((text) => console.log(text));
console.log(`${examples} examples, ${mutants} mutants of them, ${failed.length} failed`);
process.exitCode = failed.length || examples === 0 ? 1 : 0;
