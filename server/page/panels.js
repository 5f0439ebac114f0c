// SPDX-License-Identifier: Apache-2.0
// What is beside the cards: operations, store nodes, tenants, events.

import { h } from "./dom.js";
import { mark } from "./diagram.js";
import { bytes, clock, count, percent, short, span } from "./format.js";

/* ---- operations ---- */

const most = new Map(); // operation id -> the most that was seen to be left

function doneOf(operation) {
  const left = operation.drain ?? {};
  const tasks = (left.queued ?? 0) + (left.running ?? 0);
  const now = { tasks, bytes: left.bytes_left ?? 0 };
  const seen = most.get(operation.id) ?? { tasks: 0, bytes: 0 };
  const top = { tasks: Math.max(seen.tasks, now.tasks), bytes: Math.max(seen.bytes, now.bytes) };
  most.set(operation.id, top);
  return top.bytes > 0 ? { part: 1 - now.bytes / top.bytes, ...now }
    : top.tasks > 0 ? { part: 1 - now.tasks / top.tasks, ...now } : { part: null, ...now };
}

/** Forgets what is known of operations that do not run any more. */
export function keepProgress(running) {
  const ids = new Set(running.map((one) => one.id));
  for (const id of most.keys()) {
    if (!ids.has(id)) {
      most.delete(id);
    }
  }
}

const title = (operation) => operation.operation.replaceAll("_", " ");

// Whose an operation is: an instance's, or a tenant's.
const whose = (operation) => operation.instance || operation.tenant;

/** An operation that runs: step, what is left, until when. */
export function progress(operation) {
  const { part, tasks, bytes: left } = doneOf(operation);
  const words = [
    operation.step ? `step ${operation.step.replaceAll("_", " ")}` : "waits for its turn",
    tasks > 0 && `${count(tasks, "task")}, ${bytes(left)} left`,
    operation.elapsed_ms !== undefined && `for ${span(operation.elapsed_ms)}`,
    operation.deadline_in_ms !== undefined && `at most ${span(operation.deadline_in_ms)} more`,
  ].filter(Boolean).join(" · ");
  return h("div", { class: "running", "data-key": operation.id, "data-operation": operation.id },
    h("div", {}, mark("busy"), h("b", {}, title(operation)), ` ${whose(operation)}`,
      h("span", { class: "quiet" }, ` · ${words}`)),
    h("progress", { max: 1, value: part, "aria-label": `${title(operation)} of ${whose(operation)}` }));
}

export function operations(list) {
  const running = list.filter((one) => one.status === "running");
  const ended = list.filter((one) => one.status !== "running").sort((a, b) => b.id - a.id);
  const failed = ended.find((one) => one.status === "failed");
  keepProgress(running);
  return [
    running.length === 0 && h("p", { class: "quiet" }, "None runs."),
    ...running.map((one) => h("div", { class: "row", "data-key": `r${one.id}` }, progress(one),
      h("button", { type: "button", "data-do": "cancel", "data-operation": one.id, "aria-label": `Cancel ${title(one)} of ${whose(one)}` }, "Cancel"))),
    failed && h("div", { class: "notice bad", "data-key": "failed", id: "failed" }, mark("bad"),
      h("div", {}, h("b", {}, `Last failure: ${title(failed)} of ${whose(failed)}`),
        h("span", { class: "quiet" }, ` · ${failed.result} after ${span(failed.elapsed_ms)}`),
        h("p", {}, failed.message ?? "no account was given"))),
    ended.length > 0 && h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Operations that ended", "data-key": "ended" },
      h("table", {},
        h("thead", {}, h("tr", {}, ["#", "operation", "instance", "result"].map((name) => h("th", { scope: "col" }, name)),
          h("th", { scope: "col", class: "n" }, "took"))),
        h("tbody", {}, ended.slice(0, 8).map((one) => h("tr", { "data-key": one.id, class: one.status },
          h("td", {}, one.id), h("td", {}, title(one)), h("td", {}, whose(one)),
          h("td", {}, mark(one.status === "failed" ? "bad" : "good"), one.status === "failed" ? one.result : "done"),
          h("td", { class: "n" }, span(one.elapsed_ms))))))),
  ];
}

/* ---- the store ---- */

const NODE_TONES = { up: "good", draining: "busy", sick: "bad", down: "bad" };

function node(one) {
  const full = percent(one.used_bytes, one.capacity_bytes);
  const quiet = one.last_seen_s > 5 ? ` · last seen ${span(one.last_seen_s * 1000)} ago` : "";
  return h("div", { class: "node", "data-key": one.name, "data-node": one.name },
    h("div", {}, mark(NODE_TONES[one.state] ?? "bad"), h("b", {}, one.name),
      h("span", { class: "quiet" }, ` ${one.state}${one.own ? ", in this process" : one.transport ? `, by ${one.transport}` : ""}${quiet}`)),
    h("meter", { min: 0, max: 100, high: 95, value: full.toFixed(1), "aria-label": `Fill of ${one.name}` }),
    h("div", { class: "quiet" }, `${bytes(one.used_bytes)} of ${bytes(one.capacity_bytes)} · ${count(one.objects, "object")}`,
      one.puts_per_s + one.gets_per_s > 0 &&
        ` · put ${bytes(one.put_bytes_per_s)}/s, get ${bytes(one.get_bytes_per_s)}/s`,
      one.calls_failed > 0 && ` · ${one.calls_failed} of ${count(one.calls, "call")} failed`));
}

export function nodes(list, cluster) {
  return [
    cluster && !cluster.coordinator_reachable && h("p", { class: "notice bad", "data-key": "away" }, mark("bad"),
      "The coordinator cannot be reached: nothing new is shared until it is back; sleep and wake go on."),
    list.length === 0 && h("p", { class: "quiet" }, "None."),
    ...list.map(node),
  ];
}

/* ---- tenants ---- */

function member(name, instance, left) {
  const sharing = instance?.lineage?.weights_name;
  return h("li", { "data-key": name }, h("b", {}, name), " ",
    sharing ? ["as ", h("code", { title: sharing }, short(sharing, 24))] : "private",
    left && h("span", { class: "quiet" }, ` · left ${left.name ? short(left.name, 24) : "its lineage"} at ${clock(left.at)}`,
      left.why && ` for ${left.why.replaceAll("_", " ")}`));
}

export function tenants(list, instances, lefts) {
  return list.length === 0 ? [h("p", { class: "quiet" }, "None yet.")] : list.map((tenant) =>
    h("div", { class: "tenant", "data-key": tenant.name, "data-tenant": tenant.name },
      h("div", {}, h("b", {}, tenant.name), h("span", { class: "quiet" },
        ` ${bytes(tenant.used_bytes)}${tenant.quota_bytes !== undefined ? ` of ${bytes(tenant.quota_bytes)}` : ""} · ${count(tenant.objects, "object")}`)),
      tenant.quota_bytes > 0 && h("meter", { min: 0, max: 100, high: 95, value: percent(tenant.used_bytes, tenant.quota_bytes).toFixed(1), "aria-label": `Quota of ${tenant.name}` }),
      h("ul", { class: "plain" },
        tenant.lineages.map((lineage) => h("li", { "data-key": `l${lineage.id}` }, "lineage ",
          h("code", { title: lineage.weights_name }, short(lineage.weights_name)),
          h("span", { class: "quiet" }, ` · ${count(lineage.members, "member")}`))),
        tenant.instances.map((name) => member(name, instances.get(name), lefts.get(name))))));
}

/* ---- events ---- */

function inWords(event, before) {
  if (event.kind === "lost") {
    return `${count(event.lost, "event")} missed`;
  }
  if (event.kind === "restarted") {
    return "the daemon is another than before";
  }
  if (event.kind !== "state") {
    return short(event.detail ?? "", 160);
  }
  const state = event.state;
  const words = [];
  if (!before || before.scheduler !== state.scheduler) {
    words.push(state.scheduler);
  }
  if (!state.attached) {
    words.push("not attached");
  }
  for (const [tag, residency] of Object.entries(state.tags)) {
    if (before?.tags[tag] !== residency) {
      words.push(`${tag} ${residency}`);
    }
  }
  if (state.stopped_by.length > 0 && String(before?.stopped_by) !== String(state.stopped_by)) {
    words.push(`stopped by ${state.stopped_by.join(" and ").replaceAll("_", " ")}`);
  }
  if (state.degraded) {
    words.push("degraded");
  }
  return words.join(", ");
}

/** What is kept of an event: its text is made while what was before is known. */
export class EventLog {
  #states = new Map();
  #unnumbered = 0;
  rows = []; // newest first

  constructor(max) {
    this.max = max;
  }

  add(event) {
    const text = inWords(event, this.#states.get(event.instance));
    if (event.kind === "state") {
      this.#states.delete(event.instance);
      this.#states.set(event.instance, event.state);
      if (this.#states.size > this.max) {
        this.#states.delete(this.#states.keys().next().value);
      }
    }
    this.rows.unshift({ key: `${event.kind}-${event.id ?? ++this.#unnumbered}`, at: event.at_ms ?? Date.now(), kind: event.kind, instance: event.instance ?? "", text });
    this.rows.length = Math.min(this.rows.length, this.max);
  }

  show() {
    return this.rows.length === 0 ? [h("p", { class: "quiet" }, "Nothing has happened yet.")]
      : [h("ol", { class: "events" }, this.rows.map((row) => h("li", { "data-key": row.key },
        h("time", { datetime: new Date(row.at).toISOString() }, clock(row.at)),
        h("span", {}, row.instance && h("b", {}, `${row.instance} `), row.kind.replaceAll("_", " "),
          row.text && h("span", { class: "quiet", title: row.text }, ` ${row.text.includes(" ") ? row.text : short(row.text, 26)}`)))))];
  }
}
