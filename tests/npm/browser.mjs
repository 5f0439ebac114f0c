// SPDX-License-Identifier: Apache-2.0
/*
 * node browser.mjs PROFILE_FOLDER: a headless Chromium that obeys JSON lines, {"cmd": …, …} -> {"value": …} or
 * {"error": …}. Whatever goes wrong in a page by itself (an error on its console, an exception, a violation of its
 * policy, a request to another server) is kept until `problems` asks. What the servers answered is written down as
 * tests/integration/recording.py does, in its folder, and judged with the rest.
 */
import { createInterface } from 'node:readline';
import { appendFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import puppeteer from 'puppeteer-core';

const CHROMIUM = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find((path) => existsSync(path));
if (!CHROMIUM) {
    console.log(JSON.stringify({ error: 'there is no Chromium: install the Debian package chromium (./dev deps test)' }));
    process.exit(1);
}

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const browser = await puppeteer.launch({
    executablePath: CHROMIUM,
    userDataDir: process.argv[2],
    protocolTimeout: 120000,
    timeout: 120000,
    // Root needs --no-sandbox; containers have a small /dev/shm.
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--hide-scrollbars', '--force-color-profile=srgb'],
});
let context = null;
let page = null;
let origin = '';
let problems = [];
let fakes = {};

function watch() {
    page.on('console', (message) => {
        if (message.type() === 'error' || message.type() === 'warn') {
            problems.push(`console: ${message.text()} ${message.location()?.url ?? ''}`);
        }
    });
    page.on('pageerror', (error) => problems.push(`exception: ${error.stack ?? error}`));
    page.on('request', (request) => {
        const { pathname, origin: to } = new URL(request.url());
        if (to !== origin && !request.url().startsWith('data:')) {
            problems.push(`elsewhere: ${request.url()}`);
        }
        const fake = fakes[pathname];
        if (fake !== undefined) {
            request.respond({ status: 200, contentType: 'application/json', body: JSON.stringify(fake) });
        } else {
            request.continue();
        }
    });
}

const folder = process.env.KVPLANE_RECORD;
const written = new Set();
let streams = new Map(); // of this page that have not ended: request id -> what there is of each

function write(test, { method, target, status, headers }, bytes, whole) {
    const names = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
    const type = (names['content-type'] ?? '').split(';')[0];
    const id = 'x-request-id' in names;
    delete names['x-request-id'];
    delete names.date;
    const entry = { server: 'daemon', method, target, asked: {}, status, headers: names, id, length: bytes.length, whole,
        body: ['application/json', 'text/event-stream'].includes(type) ? bytes.toString() : null };
    const line = JSON.stringify(entry);
    if (folder && !written.has(line)) {
        written.add(line);
        mkdirSync(folder, { recursive: true });
        appendFileSync(join(folder, `browser-${process.pid}.jsonl`), `${JSON.stringify({ test, ...entry })}\n`);
    }
}

// Of the page before: those that went on until it was left.
function end() {
    streams.forEach(({ test, answer, text }) => write(test, answer, Buffer.concat(text), false));
    streams = new Map();
}

async function record(test) {
    const session = await page.createCDPSession();
    const asked = new Map();
    const answers = new Map();
    const mine = streams;
    session.on('Network.requestWillBeSent', ({ requestId, request }) => asked.set(requestId, request));
    session.on('Network.responseReceived', async ({ requestId, response }) => {
        const { method, url } = asked.get(requestId) ?? {};
        const { pathname, search, origin: from } = new URL(response.url);
        if (method === undefined || url !== response.url || from !== origin || fakes[pathname] !== undefined
            || response.fromDiskCache) {
            return;
        }
        const answer = { method, target: pathname + search, status: response.status, headers: response.headers };
        if (!response.mimeType.startsWith('text/event-stream')) {
            answers.set(requestId, answer);
            return;
        }
        const stream = { test, answer, text: [] };
        mine.set(requestId, stream);
        try {
            const { bufferedData } = await session.send('Network.streamResourceContent', { requestId });
            stream.text.unshift(Buffer.from(bufferedData, 'base64'));
        } catch { // it has ended meanwhile: its head is judged
        }
    });
    session.on('Network.dataReceived', ({ requestId, data }) => {
        if (data !== undefined) {
            mine.get(requestId)?.text.push(Buffer.from(data, 'base64'));
        }
    });
    session.on('Network.loadingFinished', async ({ requestId }) => {
        const answer = answers.get(requestId);
        if (answer !== undefined) {
            try {
                const { body, base64Encoded } = await session.send('Network.getResponseBody', { requestId });
                write(test, answer, Buffer.from(body, base64Encoded ? 'base64' : 'utf8'), true);
            } catch { // the page is gone, and its answers are
                write(test, answer, Buffer.alloc(0), false);
            }
        }
    });
    await session.send('Network.enable');
}

const commands = {
    /* A page of its own, without anything that another has left. */
    async open({ url, test, width = 1280, height = 900, scheme = 'light' }) {
        await context?.close();
        end();
        context = await browser.createBrowserContext();
        page = await context.newPage();
        [problems, fakes, origin] = [[], {}, new URL(url).origin];
        await page.setRequestInterception(true);
        await page.evaluateOnNewDocument(() => {
            const { fetch } = window;
            window.asked = 0; // how often the page has asked for anything,
            window.streams = 0; // and for the events
            window.fetch = (path, ...rest) => {
                window.asked++;
                window.streams += path === '/v1/kvplane/events';
                return fetch(path, ...rest);
            };
            window.heard = ''; // all that was ever said
            document.addEventListener('DOMContentLoaded', () => {
                const told = document.querySelector('#told');
                told && new MutationObserver(() => {
                    window.heard += told.innerText;
                }).observe(told, { childList: true });
            });
            window.violations = [];
            document.addEventListener('securitypolicyviolation', (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
        });
        watch();
        if (test !== undefined) { // else it is the page of another server
            await record(test);
        }
        await commands.media({ width, height, scheme });
        await page.goto(url, { timeout: 120000 });
    },
    async media({ width, height = 900, scheme = 'light', scale = 1 }) {
        await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }, { name: 'prefers-reduced-motion', value: 'reduce' }]);
        await page.setViewport({ width, height, deviceScaleFactor: scale });
    },
    fake: ({ documents }) => {
        fakes = documents;
    },
    async eval({ js }) {
        try {
            return await page.evaluate(js);
        } catch (error) {
            if (String(error).includes('context was destroyed')) { // another page takes its place: not yet
                return null;
            }
            throw error;
        }
    },
    click: ({ selector }) => page.click(selector),
    press: ({ key }) => page.keyboard.press(key),
    type: ({ selector, text }) => page.type(selector, text),
    shot: async ({ path, full = true }) => {
        await page.screenshot({ path, fullPage: full });
    },
    async axe() {
        await page.evaluate(axe);
        const { violations, passes } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
        return {
            checked: passes.length,
            violations: violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`).join(' | ')}`),
        };
    },
    async problems() {
        const violations = await page.evaluate(() => window.violations.splice(0));
        const all = [...problems, ...violations.map((one) => `policy: ${one}`)];
        problems = [];
        return all;
    },
};

console.log(JSON.stringify({ value: await browser.version() }));
for await (const line of createInterface({ input: process.stdin })) {
    const { cmd, ...fields } = JSON.parse(line);
    let answer;
    try {
        answer = { value: (await commands[cmd](fields)) ?? null };
    } catch (error) {
        answer = { error: String(error.stack ?? error) };
    }
    console.log(JSON.stringify(answer));
}
await browser.close();
end();
