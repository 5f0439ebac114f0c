// SPDX-License-Identifier: Apache-2.0
/*
 * The page: what is known of the daemon, kept up to date, and shown.
 *
 * Events say that something changed, documents say what there is: after an event they are read
 * again, soon, and often while an operation runs; else every few seconds, for what makes no events
 * (load, fill). Nothing here grows: lists are cut, samples leave after ten minutes. A hidden page
 * asks for nothing.
 */

import { get, list, post, Refused, Stream, token } from "./client.js";
import { card } from "./cards.js";
import { mark, stateOf } from "./diagram.js";
import { h, show } from "./dom.js";
import { bytes, clock, count, span } from "./format.js";
import { EventLog, nodes, operations, tenants } from "./panels.js";
import { Memory } from "./series.js";
import { askToken, confirmCancel, confirmVerb, VERBS } from "./verbs.js";

const INSTANCES_MAX = 200;
const NODES_MAX = 200;
const TENANTS_MAX = 100;
const EVENTS_MAX = 200;
const TOLD_MAX = 4;
const OWN_MAX = 64;
const TOLD_MS = 15000;
const SOON_MS = 120; // after an event
const BUSY_MS = 500; // while an operation runs
const IDLE_MS = 3000;
const SLOW_MS = 6000; // nodes and tenants, which ask others

const known = {
  instances: [],
  more: false,
  operations: [],
  nodes: [],
  tenants: [],
  cluster: null,
  details: new Map(),
  memory: new Map(),
  lefts: new Map(), // instance -> {at, name, why} of the last leaving seen
  link: { is: "connecting" },
  readOnly: false,
};
const log = new EventLog(EVENTS_MAX);
const own = new Map(); // id of an operation begun here -> its words, and the line that says so
const $ = (id) => document.getElementById(id);

/* ---- showing ---- */

let due = 0;

/* At most one drawing a frame. */
function draw() {
  due ||= requestAnimationFrame(() => {
    due = 0;
    const now = Date.now();
    drawLink(now);
    drawSummary();
    drawFleet();
    show($("cards"), [
      known.instances.length === 0 && h("p", { class: "quiet" }, known.link.is === "live" || known.cluster ? "No engine has attached yet." : "…"),
      ...known.instances.map((one) => card(one, known.memory.get(one.instance), known.details.get(one.instance),
        known.operations.find((operation) => operation.id === one.operation?.id), now)),
      known.more && h("p", { class: "quiet" }, `The first ${INSTANCES_MAX} are shown.`),
    ]);
    show($("ops"), operations(known.operations));
    show($("store"), nodes(known.nodes, known.cluster));
    show($("lineages"), tenants(known.tenants, new Map(known.instances.map((one) => [one.instance, one])), known.lefts));
    show($("events"), log.show());
  });
}

const LINKS = {
  live: ["good", "live"],
  connecting: ["busy", "connecting"],
  refused: ["bad", "a token is needed"],
};

function drawLink(now) {
  const link = known.link;
  if (link.is !== "away") {
    const [tone, text] = LINKS[link.is];
    show($("link"), [h("span", { class: `tone-${tone}` }, mark(tone), text), known.readOnly && h("span", { class: "chip" }, "read only")]);
  } else {
    const again = link.again > now ? `again in ${span(Math.max(1000, link.again - now))}` : "trying";
    // A reader of the screen hears it once: what counts down is not for them.
    show($("link"), [h("span", { class: "tone-bad" }, mark("bad"), `disconnected since ${clock(link.since)}`),
      h("span", { class: "quiet", "aria-hidden": "true" }, again),
      h("button", { type: "button", "data-do": "retry" }, "Try now")]);
  }
  $("token-button").hidden = link.is !== "refused" && token.get() === "";
  document.body.classList.toggle("stale", link.is === "away" || link.is === "refused");
}

function drawSummary() {
  const states = known.instances.map(stateOf);
  const awake = states.filter((one) => one === "awake").length;
  const asleep = states.filter((one) => one === "asleep").length;
  const bad = states.filter((one) => one === "disconnected" || one === "degraded").length;
  const memory = known.instances.reduce((sum, one) => sum + (one.regions?.bytes ?? 0), 0);
  const used = known.nodes.reduce((sum, one) => sum + one.used_bytes, 0);
  const capacity = known.nodes.reduce((sum, one) => sum + one.capacity_bytes, 0);
  const item = (label, value, tone) => h("div", { class: tone ? `tone-${tone}` : null }, h("dt", {}, label), h("dd", {}, tone && mark(tone), value));
  show($("summary"), [h("dl", {},
    item("instances", `${awake} awake${asleep ? `, ${asleep} asleep` : ""} of ${states.length}`),
    bad > 0 && item("in trouble", bad, "bad"),
    item("engine memory", bytes(memory)),
    item("store", `${bytes(used)} of ${bytes(capacity)}`),
    known.cluster && item("coordinator", known.cluster.coordinator + (known.cluster.coordinator_reachable ? "" : ", away"),
      known.cluster.coordinator_reachable ? null : "bad"))]);
}

function drawFleet() {
  const many = known.instances.length > 1;
  $("fleet").hidden = !many;
  show($("fleet"), many ? [h("span", { class: "quiet" }, "all:"), ...Object.entries(VERBS).map(([name, verb]) =>
    h("button", { type: "button", "data-do": name, "data-all": true, "aria-label": `${verb.label}: all instances` }, verb.label))] : []);
}

/* What was done, said to everybody: seen, and read out. */
function tell(text, tone = "good") {
  const line = h("p", { class: `notice tone-${tone} ${tone === "bad" ? "bad" : ""}` }, mark(tone), h("span", {}, text),
    h("button", { type: "button", "data-do": "dismiss", "aria-label": "Dismiss" }, "×"));
  $("told").append(line);
  while ($("told").children.length > TOLD_MAX) {
    $("told").firstChild.remove();
  }
  if (tone !== "bad") {
    setTimeout(() => line.remove(), TOLD_MS);
  }
  return line;
}

/* ---- reading ---- */

let stopped = new AbortController(); // while the page is hidden, or has no token
let timer = 0;
let reading = false;
let again = false;
let slowAt = 0;

function onRefused(error) {
  if (error instanceof Refused && error.status === 401 && known.link.is !== "refused") {
    stream.stop();
    stopped.abort();
    known.link = { is: "refused" };
    draw();
    enterToken(token.get() === "" ? "This daemon answers to those alone who have one."
      : "The daemon does not know the token that you gave.");
  }
}

async function readFast(signal) {
  const [instances, doing] = await Promise.all([
    list("/v1/kvplane/instances", "instances", INSTANCES_MAX, signal),
    list("/v1/kvplane/operations", "operations", 1000, signal),
  ]);
  const now = Date.now();
  known.instances = instances.list.sort((a, b) => (a.instance < b.instance ? -1 : 1));
  known.more = instances.more;
  known.operations = doing.list;
  const names = new Set(known.instances.map((one) => one.instance));
  for (const map of [known.memory, known.details, known.lefts]) {
    for (const name of map.keys()) {
      if (!names.has(name)) {
        map.delete(name);
      }
    }
  }
  for (const one of known.instances) {
    if (!known.memory.has(one.instance)) {
      known.memory.set(one.instance, new Memory());
    }
    known.memory.get(one.instance).add(one, now);
  }
  reportOwn();
  const open = [...document.querySelectorAll("details[data-ranks][open]")].map((one) => one.dataset.ranks);
  await Promise.all(open.filter((name) => names.has(name)).map(async (name) => {
    known.details.set(name, await get(`/v1/kvplane/instances/${encodeURIComponent(name)}`, signal));
  }));
}

async function readSlow(signal) {
  const [cluster, store, all] = await Promise.all([
    get("/v1/kvplane/cluster", signal),
    list("/v1/kvplane/nodes", "nodes", NODES_MAX, signal),
    list("/v1/kvplane/tenants", "tenants", TENANTS_MAX, signal),
  ]);
  known.cluster = cluster;
  known.nodes = store.list;
  known.tenants = all.list;
}

async function read() {
  if (reading) {
    again = true;
    return;
  }
  reading = true;
  const { signal } = stopped;
  try {
    const slow = Date.now() >= slowAt;
    slowAt = slow ? Date.now() + SLOW_MS : slowAt;
    const results = await Promise.allSettled([readFast(signal), slow && readSlow(signal)]);
    for (const { reason } of results) {
      onRefused(reason);
    }
  } finally {
    reading = false;
  }
  draw();
  soon(again ? SOON_MS : known.operations.some((one) => one.status === "running") ? BUSY_MS : IDLE_MS);
  again = false;
}

let nextAt = Infinity;

/* Reads no later than in ms. */
function soon(ms) {
  if (stopped.signal.aborted || (timer !== 0 && nextAt <= Date.now() + ms)) {
    return;
  }
  clearTimeout(timer);
  nextAt = Date.now() + ms;
  timer = setTimeout(() => {
    timer = 0;
    read();
  }, ms);
}

function onEvent(event) {
  log.add(event);
  const name = event.instance;
  if (event.kind === "leave") {
    known.lefts.set(name, { at: event.at_ms, why: event.detail });
  } else if (event.kind === "left") {
    const { why } = known.lefts.get(name) ?? {};
    known.lefts.set(name, { at: event.at_ms, name: event.detail, why });
  } else if (event.kind === "state") { // what happens faster than documents are read is seen, too
    const one = known.instances.find((instance) => instance.instance === name);
    if (one) {
      Object.assign(one, event.state);
    }
  }
  slowAt = event.kind === "state" ? slowAt : Math.min(slowAt, Date.now());
  soon(SOON_MS);
  draw();
}

const stream = new Stream({
  event: onEvent,
  state: (link) => {
    if (link.is === "refused") {
      onRefused(link.error);
      return;
    }
    known.link = link;
    if (link.is === "live") {
      slowAt = 0;
      soon(0);
    }
    draw();
  },
});

/* ---- doing ---- */

/* Those begun here are told of when they end. */
function reportOwn() {
  for (const [id, { words, line }] of own) {
    const operation = known.operations.find((one) => one.id === id);
    if (operation && operation.status !== "running") {
      own.delete(id);
      line.remove();
      tell(operation.status === "failed" ? `${words} failed: ${operation.message ?? operation.result}` : `${words}: done in ${span(operation.elapsed_ms)}`,
        operation.status === "failed" ? "bad" : "good");
    }
  }
}

function tellAnswer(words, line, { status, body }) {
  if (status === 202) {
    own.set(body.operation_id, { words, line });
    while (own.size > OWN_MAX) { // they ended too long ago to be told of
      own.delete(own.keys().next().value);
    }
    return;
  }
  line.remove();
  if (body?.success === false) {
    tell(`${words} failed: ${body.message ?? body.error?.message ?? "the answer says no"}`, "bad");
  } else {
    tell(`${words}: done`);
  }
}

async function act(path, words) {
  if (path === null) {
    return;
  }
  const line = tell(`${words}: asked`, "busy");
  try {
    tellAnswer(words, line, await post(path));
  } catch (error) {
    line.remove();
    if (error instanceof Refused && error.status === 403 && token.get() !== "") {
      known.readOnly = true;
      tell(`${words}: read only. ${error.message}`, "bad");
    } else {
      tell(`${words} failed: ${error.message}`, "bad");
    }
    onRefused(error);
  }
  soon(0);
}

async function enterToken(why) {
  if (await askToken(why)) {
    known.readOnly = false;
    begin();
  }
}

const DOING = {
  token: () => enterToken("Another one, or none."),
  retry: () => {
    stream.now();
    soon(0);
  },
  dismiss: (button) => button.closest(".notice").remove(),
  cancel: async (button) => {
    const operation = known.operations.find((one) => String(one.id) === button.dataset.operation);
    if (operation) {
      await act(await confirmCancel(operation), `Cancel ${operation.operation} of ${operation.instance}`);
    }
  },
};

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-do]");
  if (!button) {
    return;
  }
  const { do: what, instance } = button.dataset;
  if (DOING[what]) {
    await DOING[what](button);
    return;
  }
  const all = button.hasAttribute("data-all");
  const names = all ? known.instances.map((one) => one.instance) : [instance];
  await act(await confirmVerb(VERBS[what], names, all), `${VERBS[what].title ?? VERBS[what].label} of ${all ? "all instances" : instance}`);
});

document.addEventListener("toggle", (event) => {
  if (event.target.matches?.("details[data-ranks][open]")) {
    soon(0);
  }
}, true);

/* ---- life of the page ---- */

function end() {
  stream.stop();
  stopped.abort();
  clearTimeout(timer);
  timer = 0;
}

/* Also anew, with another token. */
function begin() {
  end();
  stopped = new AbortController();
  slowAt = 0;
  stream.start();
  soon(0);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    end();
  } else if (known.link.is !== "refused") {
    begin();
  }
});
window.addEventListener("online", () => stream.now());
setInterval(() => known.link.is === "away" && !document.hidden && drawLink(Date.now()), 1000); // it counts down

get("/version").then(({ version }) => {
  $("version").textContent = version;
}, () => {});
begin();
