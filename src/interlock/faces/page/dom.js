// Builds elements.  Everything that agents write reaches the page as a text node through here;
// no module assigns markup, so a text can never become an element, a script or a style.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("a.name", {href, onclick, data: {key}}, child, "text", [more]). */
export function h(spec, props, ...children) {
  return fill(document.createElement(spec.split(".")[0] || "div"), spec, props, children);
}

/** An element of a drawing. */
export function svg(spec, props, ...children) {
  return fill(document.createElementNS(SVG, spec.split(".")[0]), spec, props, children);
}

function fill(element, spec, props, children) {
  const classes = spec.split(".").slice(1);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  if (props instanceof Node || typeof props === "string" || Array.isArray(props)) {
    children.unshift(props);
  } else {
    for (const [name, value] of Object.entries(props || {})) set(element, name, value);
  }
  append(element, children);
  return element;
}

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "data") Object.assign(element.dataset, value);
  else if (name === "vars")
    for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
  else if (name === "value") element.value = value;
  else element.setAttribute(name, value === true ? "" : String(value));
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== undefined && child !== null && child !== false) element.append(String(child));
  }
}

/** Put these children into an element, in place of the old ones. */
export function show(element, ...children) {
  const fresh = document.createDocumentFragment();
  append(fresh, children);
  element.replaceChildren(fresh);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A button that says what it does. */
export function button(label, onclick, props = {}) {
  return h(
    `button${props.kind ? `.${props.kind}` : ""}`,
    { type: "button", onclick, ...props, kind: null },
    label,
  );
}

/** A small word with the colour of what it means. */
export function chip(word, tone = "") {
  return h("span.chip", { data: { tone } }, word);
}

/** A command that can be copied. */
export function command(text) {
  const copy = button(
    "Copy",
    async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        copy.textContent = "Press Ctrl-C";
      }
      setTimeout(() => {
        copy.textContent = "Copy";
      }, 2000);
    },
    { kind: "quiet", "aria-label": `Copy: ${text}` },
  );
  const code = h("code", text);
  return h("div.command", code, copy);
}
