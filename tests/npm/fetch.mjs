// SPDX-License-Identifier: Apache-2.0
// node run.mjs fetch.mjs API DAEMON BUSY: a trainer that speaks through node's fetch. DAEMON has the instance engine-0;
// that of BUSY never becomes idle. Every answer is one that the contract promises.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { Contract } from './contract.mjs';

const [api, daemon, busy] = process.argv.slice(2);
const contract = new Contract(join(api, 'openapi.yaml'));
const BOUND_MS = 60000; // for what should be quick: only a broken program needs it

async function ask(method, target, options = {}, base = daemon) {
    const answer = await fetch(base + target, { method, signal: AbortSignal.timeout(BOUND_MS), ...options });
    const headers = Object.fromEntries(answer.headers);
    const body = await answer.text();
    const json = headers['content-type'] === 'application/json';
    assert.deepEqual(contract.judge({ method, target, status: answer.status, headers, id: 'x-request-id' in headers,
        body: json ? body : null, length: body.length, whole: method !== 'HEAD' }), [], `${method} ${target}: ${body}`);
    return { status: answer.status, headers, body: json && method !== 'HEAD' ? JSON.parse(body) : body };
}

async function ok(target, body) {
    const answer = await ask('POST', target, body === undefined ? {}
        : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } });
    assert.equal(answer.status, 200, `${target}: ${JSON.stringify(answer.body)}`);
    return answer.body;
}

async function until(what, condition) {
    for (const end = Date.now() + BOUND_MS; ;) {
        const value = await condition();
        if (value) {
            return value;
        }
        assert(Date.now() < end, `not within its bound: ${what}`);
        await new Promise((resolve) => setTimeout(resolve, 20));
    }
}

// The step of a trainer.
async function step(version) {
    assert.equal((await ok('/pause', { mode: 'abort', clear_cache: true })).status, 'paused');
    assert.equal((await ok('/sleep?level=1')).status, 'sleeping');
    assert.equal((await ask('GET', '/is_sleeping')).body.is_sleeping, true);
    assert.deepEqual((await ok('/wake_up?tags=weights')).tags_woken, ['weights']);
    await ok('/start_weight_update', {});
    await ok('/update_weights', { update_info: { names: ['w'], dtype_names: ['bfloat16'], shapes: [[1]], packed: true } });
    await ok('/finish_weight_update', { weight_version: version });
    assert.equal((await ok('/wake_up', { tags: ['kv_cache'] })).status, 'awake');
    await ok('/resume');
    assert.equal((await ask('GET', '/weight_info')).body.weight_version, version);
}

// Events of a stream, as they come; ends with the stream or with stop.
async function* events(after, stop) {
    const answer = await fetch(`${daemon}/v1/kvplane/events`, { signal: stop.signal,
        headers: { accept: 'text/event-stream', 'last-event-id': String(after) } });
    assert.equal(answer.status, 200);
    const headers = Object.fromEntries(answer.headers);
    let text = '';
    try {
        for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
            text += chunk;
            const whole = text.split('\n\n');
            text = whole.pop();
            for (const one of whole) {
                assert.deepEqual(contract.judge({ method: 'GET', target: '/v1/kvplane/events', status: 200, headers,
                    id: 'x-request-id' in headers, body: `${one}\n\n`, length: one.length, whole: false }), []);
                const data = one.split('\n').find((line) => line.startsWith('data:'));
                if (data) {
                    yield JSON.parse(data.slice('data:'.length));
                }
            }
        }
    } catch (error) {
        assert(stop.signal.aborted, error);
    }
}

const tests = {
    async 'steps of a trainer over connections that are kept'() {
        for (let i = 0; i < 3; i++) {
            await step(`step-${i}`);
        }
    },
    async 'many at one time, while it sleeps and wakes'() {
        let over = false;
        const readers = Array.from({ length: 32 }, async (_, i) => {
            const path = ['/health', '/livez', '/metrics', '/v1/kvplane/instances', '/is_sleeping', '/load'][i % 6];
            let n = 0;
            for (; !over || n === 0; n++) {
                assert.equal((await ask('GET', path)).status, 200, path);
            }
            return n;
        });
        await step('many').finally(() => { over = true; });
        assert((await Promise.all(readers)).every((n) => n > 0));
    },
    async 'the same verb from many at one time is one operation for all of them'() {
        for (const path of ['/sleep', '/wake_up', '/pause', '/resume']) {
            const answers = await Promise.all(Array.from({ length: 8 }, () => ok(path)));
            assert(answers.every((a) => a.status === answers[0].status), path);
        }
    },
    async 'HEAD, a trailing slash, what is not there'() {
        const head = await ask('HEAD', '/health');
        assert.equal(head.status, 200);
        assert(Number(head.headers['content-length']) > 0);
        assert.equal((await ask('GET', '/health/')).status, 200);
        assert.equal((await ask('GET', '/nowhere')).status, 404);
        assert.equal((await ask('DELETE', '/sleep')).status, 405);
        assert.equal((await ask('POST', '/sleep?level=7')).status, 400);
    },
    async 'a body that comes in chunks, and a large one'() {
        const text = JSON.stringify({ mode: 'keep', clear_cache: false });
        const chunks = new ReadableStream({
            start(controller) {
                for (const half of [text.slice(0, 9), text.slice(9)]) {
                    controller.enqueue(new TextEncoder().encode(half));
                }
                controller.close();
            },
        });
        const paused = await ask('POST', '/pause', { body: chunks, duplex: 'half', headers: { 'content-type': 'application/json' } });
        assert.deepEqual([paused.status, paused.body.mode], [200, 'keep'], JSON.stringify(paused.body));
        await ok('/resume');
        const names = Array.from({ length: 100000 }, (_, i) => `model.layers.${i}.weight`);
        await ok('/update_weights', { update_info: { names, dtype_names: [], shapes: [], packed: true } });
        const large = await ask('POST', '/pause', { body: JSON.stringify({ pad: 'x'.repeat(2 << 20) }) }).catch((e) => e);
        assert(large.status === 413 || large instanceof TypeError, 'refused, or the connection is closed');
        assert.equal((await ask('GET', '/health')).status, 200);
    },
    async 'a stream of events goes on where it was, with nothing twice and nothing lost'() {
        const first = (await ask('GET', '/v1/kvplane/events?after=0')).body;
        let last = first.next;
        const seen = [];
        for (const turn of [0, 1]) {
            const stop = new AbortController();
            const acting = (async () => {
                await ok('/pause');
                await ok('/resume');
            })();
            for await (const event of events(last, stop)) {
                seen.push(event);
                last = event.id;
                if (event.kind === 'resume') {
                    stop.abort();
                    break;
                }
            }
            await acting;
            assert.equal(seen.filter((e) => e.kind === 'pause').length, turn + 1);
        }
        const ids = seen.map((e) => e.id);
        assert.deepEqual(ids, Array.from(ids, (_, i) => ids[0] + i));
    },
    async 'a client that gives up cancels nothing'() {
        const stop = new AbortController();
        const asked = ask('POST', '/pause', { signal: stop.signal }, busy);
        const running = async () => (await ask('GET', '/v1/kvplane/operations', {}, busy)).body.operations
            .find((o) => o.operation === 'pause' && o.status === 'running');
        const operation = await until('the pause runs', running);
        stop.abort();
        await assert.rejects(asked, { name: 'AbortError' });
        assert.equal((await running()).id, operation.id);
        assert.equal((await ask('POST', `/v1/kvplane/operations/${operation.id}/cancel`, {}, busy)).status, 200);
    },
};

for (const [name, test] of Object.entries(tests)) {
    try {
        await test();
        console.log(`ok: ${name}`);
    } catch (error) {
        console.log(`FAILED: ${name}: ${error.stack}`);
        process.exitCode = 1;
        break;
    }
}
process.exit(); // with connections that are kept open
