// SPDX-License-Identifier: Apache-2.0
// Instances: a card each.

import { h } from "./dom.js";
import { aside, diagram, mark, stateOf, STATES } from "./diagram.js";
import { bytes, count, short, span } from "./format.js";
import { progress } from "./panels.js";
import { VERBS } from "./verbs.js";

const RESIDENCY = { resident: "good", offloaded: "rest", discarded: "rest", unknown: "bad" };

function tags(instance) {
  return Object.entries(instance.tags).map(([tag, residency]) => (instance.attached
    ? h("li", { class: `chip tone-${RESIDENCY[residency] ?? "bad"}`, "data-tag": tag },
      mark(RESIDENCY[residency] ?? "bad"), h("b", {}, tag), ` ${residency}`)
    : h("li", { class: "chip tone-none", "data-tag": tag }, mark("none"), h("b", {}, tag), ` was ${residency}`)));
}

function load(instance) {
  const one = (label, n) => h("div", {}, h("dt", {}, label), h("dd", {}, n ?? "–"));
  return h("dl", { class: "figures" },
    one("running", instance.load?.running), one("waiting", instance.load?.waiting),
    one("loading", instance.load?.loading), one("blocks held", instance.load?.blocks_held));
}

function shared(instance) {
  const lineage = instance.lineage;
  if (instance.driven) {
    return h("p", { class: "shared" }, instance.driven.kind, " at ", h("code", {}, instance.driven.url), h("span", { class: "quiet" }, " · no KV moves this way"));
  }
  if (!lineage) {
    return null;
  }
  const notes = [
    !lineage.open && "closed to the store until it is whole again",
    lineage.weight_change_running && "weights are being changed",
    lineage.retirements_pending > 0 && `${count(lineage.retirements_pending, "reset")} not delivered yet`,
    !lineage.coordinator_reachable && "the coordinator cannot be reached",
  ].filter(Boolean);
  return h("div", { class: "shared" },
    lineage.weights_name
      ? h("p", {}, "shares as ", h("code", { title: lineage.weights_name }, short(lineage.weights_name)))
      : h("p", {}, "private", lineage.private_reason && h("span", { class: "quiet" }, ` · ${lineage.private_reason}`)),
    notes.length > 0 && h("p", { class: "note" }, mark("busy"), notes.join(" · ")));
}

function queue(name, figures) {
  return h("span", { class: "queue" }, `${name} `, h("b", {}, figures?.queued ?? 0), " queued, ",
    h("b", {}, figures?.running ?? 0), " running",
    figures?.oldest_age_ms > 0 && h("span", { class: "quiet" }, ` · oldest ${span(figures.oldest_age_ms)}`));
}

function regionTable(instance, rank) {
  const regions = rank.regions ?? [];
  if (regions.length === 0) {
    return h("p", { class: "quiet" }, "no regions");
  }
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Regions of rank ${rank.rank} of ${instance.instance}` },
    h("table", {},
      h("thead", {}, h("tr", {}, ["region", "tag", "kind", "state", "gen."].map((name) => h("th", { scope: "col" }, name)),
        ["bytes", "pinned"].map((name) => h("th", { scope: "col", class: "n" }, name)))),
      h("tbody", {}, regions.map((region) => h("tr", { "data-key": `${region.id} ${region.generation}` },
        h("td", {}, region.id), h("td", {}, region.tag),
        h("td", {}, region.kind, region.kept_across_sleep && h("span", { class: "quiet" }, " stays")),
        h("td", {}, region.state, region.transfers > 0 && h("span", { class: "quiet" }, ` ${count(region.transfers, "transfer")}`)), h("td", {}, region.generation),
        h("td", { class: "n" }, bytes(region.bytes)), h("td", { class: "n" }, bytes(region.pinned_bytes)))))));
}

function rankBlock(instance, rank) {
  const roles = [rank.worker && "worker", rank.scheduler && "scheduler"].filter(Boolean).join(" and ");
  const wrong = !rank.attached ? "gone" : rank.answers === false ? "does not answer" : null;
  return h("div", { class: "rank", "data-key": rank.rank },
    h("h4", {}, `Rank ${rank.rank} `, wrong ? [mark("bad"), h("span", { class: "bad" }, wrong)] : h("span", { class: "quiet" }, roles)),
    rank.attached && [
      regionTable(instance, rank),
      rank.queues && h("p", {}, ["lookup", "get", "put"].map((name, i) => [i > 0 && " · ", queue(name, rank.queues[name])])),
    ],
    rank.helper && h("p", { class: "quiet" },
      `GPU helper ${rank.helper.running ? `runs (pid ${rank.helper.pid})` : "does not run"}, ${rank.helper.gpu_rdma}`,
      rank.helper.last_cause && `: ${rank.helper.last_cause}`));
}

function ranks(instance, detail) {
  const list = detail?.rank_states ?? instance.rank_states ?? [];
  const attached = list.filter((rank) => rank.attached).length;
  return h("details", { "data-ranks": instance.instance },
    h("summary", {}, `${attached} of ${count(instance.world_size ?? list.length, "rank")} · `,
      `${count(instance.regions?.registered ?? 0, "region")} registered, ${bytes(instance.regions?.bytes ?? 0)}`),
    list.map((rank) => rankBlock(instance, rank)));
}

function buttons(instance, state) {
  return h("div", { class: "verbs", role: "group", "aria-label": `Verbs of ${instance.instance}` },
    Object.entries(VERBS).map(([name, verb]) => h("button", {
      type: "button", "data-do": name, "data-instance": instance.instance,
      class: verb.fit(state) ? "fits" : null, disabled: !instance.attached,
      "aria-label": `${verb.label}: ${instance.instance}`,
    }, verb.label)));
}

export function card(instance, memory, detail, operation, now) {
  const state = stateOf(instance);
  const { text, tone } = STATES[state];
  const more = aside(instance);
  return h("article", { class: `card tone-${tone}`, "data-key": instance.instance, "data-instance": instance.instance, "data-state": state,
    "aria-label": `Instance ${instance.instance}` },
    h("header", {},
      h("h3", { title: instance.instance }, instance.instance),
      h("span", { class: "quiet" }, `${instance.tenant ?? "default"} · version ${instance.weight_version ?? "default"}`),
      h("span", { class: `state tone-${tone}` }, mark(tone), h("b", {}, text), more && h("span", { class: "aside" }, more))),
    instance.degraded && h("p", { class: "notice bad" }, mark("bad"), instance.message ?? "degraded: it does not serve"),
    !instance.attached && h("p", { class: "note" }, mark("bad"), instance.message ?? "its engine is not attached, or not with all its ranks"),
    diagram(instance.instance, state),
    h("ul", { class: "chips", "aria-label": "Residency" }, tags(instance)),
    h("div", { class: "pair" }, memory?.graph(instance.instance, now), load(instance)),
    instance.operation && progress({ ...operation, ...instance.operation, instance: instance.instance }),
    instance.attached && shared(instance),
    ranks(instance, detail),
    buttons(instance, state));
}
