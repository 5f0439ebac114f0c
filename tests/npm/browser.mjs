// SPDX-License-Identifier: Apache-2.0
/*
 * node browser.mjs PROFILE_FOLDER: a headless Chromium that obeys JSON lines, {"cmd": …, …} -> {"value": …} or
 * {"error": …}. Whatever goes wrong in a page by itself (an error on its console, an exception, a violation of its
 * policy, a request to another server) is kept until `problems` asks.
 */
import { createInterface } from 'node:readline';
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
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

const commands = {
    /* A page of its own, without anything that another has left. */
    async open({ url, width = 1280, height = 900, scheme = 'light' }) {
        await context?.close();
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
