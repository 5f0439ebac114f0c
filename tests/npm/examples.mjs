// SPDX-License-Identifier: Apache-2.0
// node run.mjs examples.mjs API DAEMON STORE BUSY: every operation of the contracts is asked of living servers, as the
// contract's examples ask: alone, with each example of its body, and with the examples of all its parameters. The
// answer is one that the contract promises, and has the members of the example of an answer.
//
// DAEMON, without a share of its own, has the instance engine-0 of the tenant default, all of whose objects are on
// STORE. BUSY has an instance whose engine never becomes idle.
import { join } from 'node:path';
import { Contract } from './contract.mjs';

const [api, daemon, store, busy] = process.argv.slice(2);
const SHARDS = 256; // at most
// What must have been done for an operation to have something to do.
const BEFORE = {
    resume: ['/pause'],
    wake_up: ['/sleep?level=1'],
    update_weights: ['/start_weight_update'],
    finish_weight_update: ['/start_weight_update'],
    resume_memory_occupation: ['/release_memory_occupation'],
    get_resume_memory: ['/release_memory_occupation'],
    resume_memory: ['/release_memory_occupation'],
    continue_generation: ['/pause_generation'],
    areal_continue_generation: ['/areal_pause_generation'],
    get_operation: ['/pause', '/resume'],
    list_operations: ['/pause', '/resume'],
    list_events: ['/pause', '/resume'],
};
// They come first, while there are objects, and last, for then there is no store.
const FIRST = ['get_object', 'pin_object', 'remove_object', 'list_events'];
const LAST = ['drain'];
// Where what some parameters say leaves no sense to others: asked without each of these.
const WITHOUT = { get_object: [['namespace', 'limit', 'cursor'], ['key', 'tenant', 'instance', 'group', 'part']] };
// Members whose names are names of something: any may be there.
const MAPS = new Set(['tags', 'held']);
// Members that come and go with what runs meanwhile: an example may have them when an answer has not.
const SOMETIMES = new Set(['weights_name', 'private_reason', 'daemon', 'message', 'detail', 'state', 'result']);
const failed = [];
const asked = new Set();

async function ask(base, method, target, body, headers = {}) {
    const answer = await fetch(base + target, { method, headers: { ...headers,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
    body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.timeout(60000) });
    const own = Object.fromEntries(answer.headers);
    return { method, target, status: answer.status, headers: own, id: 'x-request-id' in own, whole: true,
        body: await answer.text() };
}

async function done(base, target, headers) {
    const answer = await ask(base, 'POST', target, undefined, headers);
    if (answer.status >= 300) {
        throw new Error(`POST ${target}: ${answer.status} ${answer.body}`);
    }
    return JSON.parse(answer.body);
}

// What may be sent as examples only once it is known: the objects that there are, a number that somebody gave.
const objects = [];
async function find_objects() {
    const events = [];
    for (let shard = 0; shard < SHARDS; shard++) {
        const answer = await ask(store, 'GET', `/v1/kvplane/events?shard=${shard}`);
        if (answer.status !== 200) {
            break;
        }
        events.push(...JSON.parse(answer.body).events);
    }
    objects.push(...events.filter((e) => e.event === 'stored')
        .map(({ tenant, layout, lineage, key }) => ({ tenant, layout, lineage, key })));
}

async function live(operation) {
    switch (operation.id) {
    case 'get_object':
        return { ...objects[0], namespace: objects[0].tenant };
    case 'pin_object':
        return objects[0];
    case 'remove_object':
        return objects.pop(); // another one: that may be pinned
    case 'get_tenant':
    case 'reset_tenant':
        return { name: 'default' };
    case 'remove_tenant': // nobody is attached of that one
    case 'set_quota':
        return { name: 'idle' };
    case 'get_node':
        return operation.path.includes('{') ? { name: 'store-0' } : {};
    case 'page_file':
        return { name: 'page.css' };
    case 'get_operation':
        return { id: JSON.parse((await ask(daemon, 'GET', '/v1/kvplane/operations')).body).operations[0].id };
    case 'cancel_operation':
        return { id: (await done(busy, '/pause', { prefer: 'respond-async' })).operation_id };
    default:
        return {};
    }
}

// The cursor of a second page, where there are pages.
async function next_page(base, operation) {
    if (!(operation.spec.parameters ?? []).some((p) => p.$ref?.endsWith('/cursor'))) {
        return {};
    }
    const namespace = operation.id === 'get_object' ? `&namespace=${objects[0].tenant}` : '';
    const { next } = JSON.parse((await ask(base, 'GET', `${operation.path}?limit=1${namespace}`)).body);
    return next === null ? {} : { cursor: next };
}

// Words about how a value differs from its example in members and kinds.
function differs(example, value, where) {
    const kind = (v) => (Array.isArray(v) ? 'array' : v === null ? 'null' : typeof v);
    if (example === null || value === null) {
        return [];
    }
    if (kind(example) !== kind(value)) {
        return [`${where} is ${kind(value)}, ${kind(example)} in the example`];
    }
    if (Array.isArray(value)) {
        return example.length === 0 ? [] : value.flatMap((v, i) => {
            const words = example.map((e) => differs(e, v, `${where}/${i}`));
            return words.find((w) => w.length === 0) ?? words[0];
        });
    }
    if (typeof value !== 'object' || MAPS.has(where.split('/').at(-1)) || where.endsWith('/result')) {
        return []; // what an engine says is its own
    }
    const [here, there] = [Object.keys(value), Object.keys(example)];
    return [...here.filter((k) => !there.includes(k)).map((k) => `${where}/${k} is not in the example`),
        ...there.filter((k) => !here.includes(k) && !SOMETIMES.has(k)).map((k) => `${where}/${k} of the example is not there`),
        ...here.filter((k) => there.includes(k)).flatMap((k) => differs(example[k], value[k], `${where}/${k}`))];
}

// The parameters of an operation with an example, or a value that stands for one.
function parameters(contract, operation) {
    return (operation.spec.parameters ?? []).map((p) => contract.resolve(p))
        .map((p) => ({ ...p, example: p.example ?? contract.resolve(p.schema).example ?? p.schema.default }))
        .filter((p) => p.example !== undefined);
}

function target_of(operation, known, sent) {
    const path = operation.path.replace(/\{([^}]+)\}/g, (_, name) => encodeURIComponent(sent[name] ?? known[name]));
    const query = Object.entries(sent).filter(([name]) => !operation.path.includes(`{${name}}`))
        .flatMap(([name, value]) => [value].flat().map((v) => `${name}=${encodeURIComponent(v)}`));
    return path + (query.length ? `?${query.join('&')}` : '');
}

// A request without a body says too little, where no example of one is empty.
function needs_body(contract, operation) {
    const body = contract.resolve(operation.spec.requestBody);
    return body?.required || (body && !contract.examples(body.content['application/json']).some((e) => Object.keys(e).length === 0));
}

// A store node's lists nothing.
function ways(operation) {
    const both = (operation.spec.parameters ?? []).some((p) => p.$ref?.endsWith('/namespace'));
    return both ? WITHOUT[operation.id] : [['namespace']];
}

// One request; everything that is wrong with its answer. alike: it is to look like an example of an answer.
async function run(base, contract, operation, all, body, without = []) {
    for (const before of base === daemon ? BEFORE[operation.id] ?? [] : []) {
        await done(base, before);
    }
    const given = parameters(contract, operation);
    const paths = Object.fromEntries(given.filter((p) => p.in === 'path').map((p) => [p.name, p.example]));
    const known = { ...await live(operation), ...(all ? await next_page(base, operation) : {}) };
    const more = given.filter((p) => p.in === 'query' && (all));
    const sent = Object.fromEntries(Object.entries({ ...Object.fromEntries(more.map((p) => [p.name, p.example])), ...known })
        .filter(([name]) => !without.includes(name)));
    const target = target_of(operation, paths, sent);
    const to = operation.id === 'cancel_operation' ? busy : base;
    const answer = await ask(to, operation.method, target, body);
    const where = `${operation.id}: ${operation.method} ${target} ${body === undefined ? '' : JSON.stringify(body)}`;
    asked.add(`${base} ${operation.id}`);
    failed.push(...contract.judge(answer).map((w) => `${where}: ${w}`));
    if (answer.status !== 200) {
        failed.push(`${where}: ${answer.status} ${answer.body}`);
        return;
    }
    const media = contract.response(operation, 200).content?.['application/json'];
    if (!all && media) {
        const value = JSON.parse(answer.body);
        const words = contract.examples(media).map((e) => differs(e, value, ''));
        if (!words.some((w) => w.length === 0)) {
            failed.push(`${where}: ${words[0] ?? 'no example of its answer'}\n    ${answer.body.slice(0, 1500)}`);
        }
    }
}

async function restore() {
    for (const path of ['/wake_up', '/resume']) {
        await done(daemon, path);
    }
}

async function stream() {
    const stop = new AbortController();
    const answer = await fetch(`${daemon}/v1/kvplane/events?after=0`,
        { headers: { accept: 'text/event-stream' }, signal: stop.signal });
    const headers = Object.fromEntries(answer.headers);
    let body = '';
    for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
        body += chunk;
        if (body.includes('"kind":"state"') && body.endsWith('\n\n')) {
            break;
        }
    }
    stop.abort();
    const words = contracts[0][1].judge({ method: 'GET', target: '/v1/kvplane/events', status: answer.status, headers,
        id: 'x-request-id' in headers, body, length: body.length, whole: false });
    failed.push(...words.map((w) => `the stream of events: ${w}`));
}

const contracts = [[daemon, new Contract(join(api, 'openapi.yaml'))], [store, new Contract(join(api, 'openapi-store.yaml'))]];
const place = ({ id }) => (FIRST.includes(id) ? 0 : LAST.includes(id) ? 2 : 1);
await find_objects();
if (objects.length < 8) {
    throw new Error(`${objects.length} objects on ${store}`);
}
for (const turn of [0, 1, 2]) {
    for (const [base, contract] of contracts) {
        for (const operation of contract.operations.filter((o) => place(o) === turn)) {
            const body = contract.resolve(operation.spec.requestBody)?.content['application/json'];
            for (const example of LAST.includes(operation.id) ? [{}] : [undefined, ...(body ? contract.examples(body) : [])]) {
                if (example === undefined && needs_body(contract, operation)) {
                    continue;
                }
                for (const without of ways(operation)) {
                    await run(base, contract, operation, false, example, without);
                    await restore();
                }
            }
            if (LAST.includes(operation.id)) {
                continue; // nobody is there for a second time
            }
            for (const without of ways(operation)) {
                await run(base, contract, operation, true, body && contract.examples(body)[0], without);
                await restore();
            }
        }
    }
}
await stream();
failed.forEach((text) => console.log(text));
console.log(`${asked.size} operations asked, ${failed.length} failures`);
process.exitCode = failed.length ? 1 : 0;
