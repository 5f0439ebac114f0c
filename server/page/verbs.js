// SPDX-License-Identifier: Apache-2.0
// What can be done to an instance, what it will do said before it is done, and the two dialogs.

import { h, show } from "./dom.js";
import { token } from "./client.js";

const ABORTED = "Running requests are aborted.";
const FRESH = "It leaves its lineage: what it put before stays for those who still share it, and it starts with an empty cache.";

/*
 * Each verb: label, route, parameters, options (asked for in the dialog), what it does (sentences),
 * danger: what cannot be taken back. fit(state) says where it makes a difference.
 */
export const VERBS = {
  pause: {
    label: "Pause",
    path: "/pause",
    what: ["No new request is started; those that run are dealt with as chosen. Memory stays where it is."],
    options: {
      mode: {
        label: "Running requests", values: [["abort", "abort them"], ["wait", "let them end"], ["keep", "freeze them until resumed"]],
      },
      clear_cache: { label: "Clear the prefix cache, too", flag: true },
    },
    fit: (is) => is === "awake",
  },
  resume: {
    label: "Resume",
    path: "/resume",
    what: ["Requests are started again. A drain that is under way is canceled."],
    fit: (is) => ["paused", "pausing", "draining"].includes(is),
  },
  sleep1: {
    label: "Sleep 1",
    title: "Sleep, level 1",
    path: "/sleep",
    parameters: { level: "1" },
    what: [
      "Weights are kept aside in the host's memory, the KV cache is given up; the GPU is free for others. Waking brings the same weights back.",
      FRESH,
    ],
    options: { mode: { label: "Running requests", values: [["abort", "abort them"], ["wait", "let them end first"]] } },
    fit: (is) => ["awake", "paused"].includes(is),
  },
  sleep2: {
    label: "Sleep 2",
    title: "Sleep, level 2",
    path: "/sleep",
    parameters: { level: "2" },
    danger: "Weights are discarded: after waking it needs new ones before it can serve.",
    what: ["Weights and KV cache are given up; the GPU is free for others.", FRESH],
    options: { mode: { label: "Running requests", values: [["abort", "abort them"], ["wait", "let them end first"]] } },
    fit: (is) => ["awake", "paused", "asleep"].includes(is),
  },
  wake: {
    label: "Wake",
    path: "/wake_up",
    what: ["All memory is mapped and registered again, and requests are started. Weights that were discarded must be loaded anew."],
    fit: (is) => ["asleep", "degraded"].includes(is),
  },
  reset: {
    label: "Reset",
    title: "Reset the prefix cache",
    path: "/reset_prefix_cache",
    what: ["What the engine has cached is forgotten; prompts seen before are computed again."],
    options: {
      reset_running_requests: { label: "Also if requests hold blocks: they are computed again", flag: true },
      reset_external: { label: "Also in the store, for all who share its lineage", flag: true },
    },
    fit: (is) => ["awake", "paused"].includes(is),
  },
  release: {
    label: "Release KV",
    title: "Release the KV cache's memory",
    path: "/release_kv_cache_memory",
    what: ["The KV cache is given up, weights stay. An idle instance is paused for it; one that works is refused. Wake takes the memory back.", FRESH],
    fit: (is) => ["awake", "paused"].includes(is),
  },
};

const $ = (id) => document.getElementById(id);

function optionField(name, option) {
  if (option.flag) {
    return h("label", { class: "check" }, h("input", { type: "checkbox", name }), h("span", {}, option.label));
  }
  return h("fieldset", {}, h("legend", {}, option.label),
    option.values.map(([value, label], i) => h("label", { class: "check" },
      h("input", { type: "radio", name, value, checked: i === 0 }), h("span", {}, label))));
}

function chosen(options) {
  const parameters = {};
  for (const [name, option] of Object.entries(options ?? {})) {
    const fields = [...$("confirm-options").querySelectorAll("input")].filter((field) => field.name === name);
    if (option.flag && fields[0].checked) {
      parameters[name] = "true";
    } else if (!option.flag) {
      parameters[name] = fields.find((field) => field.checked).value;
    }
  }
  return parameters;
}

const asked = new Map(); // dialog -> what takes the answer

/*
 * The value of the button that closed it; "": Escape, or Cancel. That it was closed is told a
 * moment later, when it may be open again for another question: then it is that one's no more.
 */
function ask(dialog) {
  asked.get(dialog)?.("");
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const closed = () => dialog.open || asked.get(dialog)(dialog.returnValue);
    asked.set(dialog, (value) => {
      dialog.removeEventListener("close", closed);
      asked.delete(dialog);
      resolve(value);
    });
    dialog.addEventListener("close", closed);
  });
}

/** Asks; the path to POST to, or null. names: of the instances it is for; all: of every one. */
export async function confirmVerb(verb, names, all) {
  const dialog = $("confirm");
  if (dialog.open) {
    return null;
  }
  $("confirm-title").textContent = `${verb.title ?? verb.label}: ${all ? `all ${names.length} instances` : names[0]}`;
  show($("confirm-what"), [
    ...verb.what.map((text) => h("p", {}, text)),
    verb.danger && h("p", { class: "notice bad" }, verb.danger),
    all && h("p", { class: "quiet" }, `${names.slice(0, 12).join(", ")}${names.length > 12 ? ", …" : ""}`),
  ]);
  $("confirm-options").replaceChildren(...Object.entries(verb.options ?? {}).map(([name, option]) => optionField(name, option)));
  $("confirm-yes").textContent = verb.title ? verb.title.split(/[ ,]/)[0] : verb.label;
  if (await ask(dialog) !== "yes") {
    return null;
  }
  const query = new URLSearchParams({ instance: all ? "*" : names[0], ...verb.parameters, ...chosen(verb.options) });
  return `${verb.path}?${query}`;
}

/** The same of an operation that runs. */
export async function confirmCancel(operation) {
  const dialog = $("confirm");
  if (dialog.open) {
    return null;
  }
  $("confirm-title").textContent = `Cancel ${operation.operation} of ${operation.instance}`;
  show($("confirm-what"), [h("p", {}, "What was done so far is undone, and the instance goes on as before. Once memory was discarded it is refused.")]);
  $("confirm-options").replaceChildren();
  $("confirm-yes").textContent = "Cancel it";
  return await ask(dialog) === "yes" ? `/v1/kvplane/operations/${operation.id}/cancel` : null;
}

/** Asks for a token and keeps it; whether there is another than before. */
export async function askToken(why) {
  const dialog = $("token");
  if (dialog.open) {
    return false;
  }
  $("token-what").textContent = why;
  $("token-text").value = "";
  $("token-forget").hidden = token.get() === "";
  const answer = await ask(dialog);
  const text = $("token-text").value.trim();
  $("token-text").value = "";
  if (answer === "yes" && text !== "") {
    token.set(text);
    return true;
  }
  if (answer === "forget") {
    token.set("");
    return true;
  }
  return false;
}
