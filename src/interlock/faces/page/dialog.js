// Questions to the person: a reason, some fields, a confirmation.  The browser's own dialog element
// keeps the focus inside, and Escape leaves it.

import { button, h } from "./dom.js";
import { plural } from "./format.js";

const NAMED = 6;

/** Ask; resolves to the answers by name, or null if the person leaves. */
export function ask({ title, text, label = "OK", reason, fields = [], danger = false, names = [] }) {
  const all = [
    ...fields,
    ...(reason
      ? [
          {
            name: "reason",
            label: reason === "required" ? "Reason, for the record" : "Reason, for the record (optional)",
            required: reason === "required",
            lines: 2,
          },
        ]
      : []),
  ];
  const inputs = all.map(field);
  return new Promise((resolve) => {
    let answer = null;
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: (event) => {
          event.preventDefault();
          const values = Object.fromEntries(all.map((each, n) => [each.name, inputs[n].input.value.trim()]));
          const missing = all.findIndex((each) => each.required && !values[each.name]);
          if (missing >= 0) {
            inputs[missing].input.focus();
            inputs[missing].input.setAttribute("aria-invalid", "true");
            return;
          }
          answer = values;
          dialog.close();
        },
      },
      h("h2", title),
      text && h("p", text),
      names.length > 0 && namesList(names),
      inputs.map((each) => each.element),
      h(
        "div.buttons",
        button("Not now", () => dialog.close()),
        h(danger ? "button.danger" : "button.primary", { type: "submit" }, label),
      ),
    );
    const dialog = h(
      "dialog",
      {
        onclose: () => {
          dialog.remove();
          resolve(answer);
        },
        onclick: (event) => event.target === dialog && dialog.close(),
      },
      form,
    );
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    document.body.append(dialog);
    dialog.showModal();
    (inputs[0]?.input || form.querySelector("[type=submit]")).focus();
  });
}

function namesList(names) {
  const more = names.length - NAMED;
  return h("p.names", names.slice(0, NAMED).join(", "), more > 0 && ` and ${plural(more, "other")}`);
}

function field({ name, label, value = "", type = "text", lines = 0, required = false }) {
  const input = lines
    ? h("textarea", { name, rows: lines, value, required })
    : h("input", { name, type, value, required, autocomplete: "off" });
  input.removeAttribute("required"); // our own check keeps the words in one language
  return { input, element: h("label.field", h("span", label), input) };
}

/** A dialog that only shows something. */
export function showDialog(title, ...content) {
  const dialog = h(
    "dialog.wide",
    { onclose: () => dialog.remove(), onclick: (event) => event.target === dialog && dialog.close() },
    h(
      "div.panel",
      h("h2", title),
      content,
      h(
        "div.buttons",
        button("Close", () => dialog.close(), { kind: "primary" }),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
