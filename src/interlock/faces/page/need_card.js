// One thing that needs a person: what it is, since when, and the buttons or the box to settle it.

import { button, chip, h } from "./dom.js";
import { ago, brief, shortId, valueText } from "./format.js";
import { data } from "./state.js";
import { WORK_ACTIONS } from "./work_actions.js";
import { actionsFor, carryOut, perform, person } from "./actions.js";
import { ask } from "./dialog.js";
import { full, split, thingLink } from "./thing.js";

/** The card of an item of `needs()`. */
export function needCard(item) {
  return h(
    "li.need",
    { data: { kind: item.kind, tone: item.tone } },
    h(
      "div.line",
      chip(item.word, item.tone),
      item.from && h("span.muted", "from ", thingLink(`agent/${item.from}`, item.from)),
      thingOf(item),
      h("span.grow"),
      item.since && ago(item.since, " ago"),
    ),
    h("p.text", item.text),
    item.kind === "decision"
      ? decisionForm(item.item)
      : [item.remedy && h("p.muted.remedy", item.remedy), buttons(item)],
  );
}

function thingOf(item) {
  if (!item.thing || item.kind === "decision") return null;
  const [kind, id] = split(item.thing);
  return thingLink(full(item.thing), `${kind} ${shortId(id)}`);
}

/** What can be done about a problem, as [action, thing]: that of the thing that it is about. */
function actionsOf(item) {
  const found = [];
  const add = (kind, thing) => {
    if (!thing) return;
    for (const action of actionsFor(kind, thing))
      if (!["Note", "Edit"].includes(action.label)) found.push([action, thing]);
  };
  const [kind, id] = item.thing ? split(item.thing) : ["", ""];
  if (item.kind === "quarantine") add("quarantine", item.item);
  else if (kind === "task" && data.tasks?.has(id)) add("task", data.tasks.get(id));
  else if (kind === "lock")
    add(
      "lock",
      data.locks?.find((each) => each.lock === id),
    );
  else if (kind === "budget") add("budget", { thing: id, limit_tokens: "", limit_cost: "" });
  else if (kind === "agent" || item.agent) {
    const agent = item.agent || id;
    const live = data.agents?.agents.find((each) => each.agent === agent && each.state === "alive");
    add(
      "agent",
      live
        ? { ...live, paused: item.kind === "paused" }
        : { agent, state: "gone", died: item.kind === "dead", paused: item.kind === "paused" },
    );
  }
  return found;
}

/** Changes when the card has to be made again; its text alone is written over (`updateText`). */
export const needMark = (item) =>
  JSON.stringify([item.remedy, person.role, actionsOf(item).map(([action]) => action.label)]);

/** Write the text of an item into its card: a new card would take the focus from its buttons. */
export function updateText(card, item) {
  const place = card.querySelector(".text");
  if (place.textContent !== item.text) place.textContent = item.text;
}

function buttons(item) {
  const found = actionsOf(item).map(([action, thing]) =>
    button(action.label, () => perform(action, [thing]), { kind: action.ask?.danger ? "dangerous" : "" }),
  );
  return found.length ? h("div.buttons", found) : null;
}

/** Answer a decision: a button for each option, or a text. */
function decisionForm(decision) {
  if (person.role === "read") return null;
  const answer = (text) => carryOut(WORK_ACTIONS.decision.answer, [decision], { text });
  if (decision.options.length) {
    return h(
      "div.buttons",
      decision.options.map((each) =>
        button(
          each.option,
          async () => {
            if (
              each.acts &&
              !(await ask({
                title: `${each.option}?`,
                text: each.text || "This option acts at once.",
                label: each.option,
                danger: true,
              }))
            )
              return;
            answer(each.option);
          },
          { title: each.text || null, kind: each.option === decision.default ? "primary" : "" },
        ),
      ),
    );
  }
  const box = h("input", {
    type: "text",
    placeholder: "Your answer",
    "aria-label": `Answer to ${brief(valueText(decision.question), 80)}`,
  });
  return h(
    "form.answer",
    {
      onsubmit: (event) => {
        event.preventDefault();
        if (box.value.trim()) answer(box.value.trim());
      },
    },
    box,
    h("button.primary", { type: "submit" }, "Answer"),
  );
}
