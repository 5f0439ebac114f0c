// SPDX-License-Identifier: Apache-2.0
// Elements from data, and the least change of the page that shows them. Text from data is only
// ever a text node or the value of an attribute: a name cannot become HTML.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false && child !== "") {
      element.append(child instanceof Node ? child : String(child));
    }
  }
  return element;
}

/** h("p", {class: "quiet"}, "text", …): an HTML element; false and null are left out. */
export function h(tag, attributes = {}, ...children) {
  return make(document.createElement(tag), attributes, children);
}

/** The same of SVG. */
export function s(tag, attributes = {}, ...children) {
  return make(document.createElementNS(SVG, tag), attributes, children);
}

function sameKind(live, next) {
  return live.nodeType === next.nodeType && live.nodeName === next.nodeName &&
    keyOf(live) === keyOf(next);
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

/* What the reader has opened stays open. */
function ownedByReader(element, name) {
  return name === "open" && element.nodeName === "DETAILS";
}

function syncAttributes(live, next) {
  for (const { name } of [...live.attributes]) {
    if (!next.hasAttribute(name) && !ownedByReader(live, name)) {
      live.removeAttribute(name);
    }
  }
  for (const { name, value } of [...next.attributes]) {
    if (live.getAttribute(name) !== value && !ownedByReader(live, name)) {
      live.setAttribute(name, value);
    }
  }
}

function morph(live, next) {
  if (live.nodeType === Node.TEXT_NODE) {
    if (live.data !== next.data) {
      live.data = next.data;
    }
    return;
  }
  syncAttributes(live, next);
  show(live, [...next.childNodes]);
}

/**
 * Makes children (nodes, as h() gives them) the children of parent. What is there already stays
 * the same node, with its focus and its scroll: by data-key, else by order and kind.
 */
export function show(parent, children) {
  let at = parent.firstChild;
  for (const next of children.flat(Infinity).filter((child) => child)) {
    let found = at;
    while (found !== null && !sameKind(found, next)) {
      found = found.nextSibling;
    }
    if (found === null) {
      parent.insertBefore(next, at);
    } else {
      while (at !== found) { // what was before it is gone
        const gone = at;
        at = at.nextSibling;
        gone.remove();
      }
      at = found.nextSibling;
      morph(found, next);
    }
  }
  while (at !== null) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}
