// Carries out what a person asks for: on one thing or on many, after a dialog, with an undo where
// there is one, and with words about what happened.

import { WORK_ACTIONS } from "./work_actions.js";
import { SHARED_ACTIONS } from "./shared_actions.js";
import { act, refused, Trouble } from "./api.js";
import { ask } from "./dialog.js";
import { toast } from "./toast.js";
import { plural } from "./format.js";

const AT_ONCE = 4;
const ACTIONS = { ...WORK_ACTIONS, ...SHARED_ACTIONS };
export const person = { role: "admin", agent: "" };

export const nameOf = (thing) =>
  thing.schedule || // before its task
  thing.task ||
  thing.lock ||
  thing.patterns?.join(", ") ||
  (thing.token && thing.holder) ||
  thing.semaphore ||
  thing.pipeline ||
  thing.decision ||
  thing.branch ||
  thing.guard ||
  thing.agent ||
  thing.id ||
  thing.swarm ||
  thing.thing;

/** The actions that fit this thing; none for a reader. */
export function actionsFor(kind, thing) {
  if (person.role === "read") return [];
  return Object.values(ACTIONS[kind] || {}).filter((each) => each.ask !== null && each.when(thing));
}

/** Do it to one thing or to many, after asking; says what happened, with an undo where there is one. */
export async function perform(action, things) {
  if (!things.length) return;
  const many = things.length > 1;
  const what = many ? plural(things.length, "item") : nameOf(things[0]);
  let said = {};
  if (action.ask) {
    const fields = typeof action.ask.fields === "function" ? action.ask.fields(things[0]) : [];
    said = await ask({
      ...action.ask,
      fields,
      title: `${action.label} ${what}`,
      label: action.label,
      names: many ? things.map(nameOf) : [],
    });
    if (!said) return;
  }
  await carryOut(action, things, said);
}

/** Do it without asking: the answers are given. */
export async function carryOut(action, things, said = {}) {
  const many = things.length > 1;
  const done = [];
  const wrong = [];
  const todo = [...things];
  const worker = async () => {
    for (let thing = todo.shift(); thing; thing = todo.shift()) {
      try {
        await action.before?.(thing, said);
        const outcome = await act(action.operation, action.request(thing, said));
        const why = refused(outcome);
        if (why) wrong.push([thing, why]);
        else done.push([thing, outcome]);
      } catch (error) {
        if (!(error instanceof Trouble)) throw error;
        wrong.push([thing, error.message]);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  if (done.length) {
    const text = many
      ? `${action.label}: ${plural(done.length, "item")} done.`
      : `${nameOf(done[0][0])} ${action.done}.`;
    toast(text, { undo: action.undo && (() => takeBack(action, done)) });
  }
  if (wrong.length) {
    const [thing, why] = wrong[0];
    toast(
      `${action.label} did not work for ${many ? `${plural(wrong.length, "item")}, such as ` : ""}${nameOf(thing)}: ${why}`,
      { bad: true },
    );
  }
  return done.length;
}

async function takeBack(action, done) {
  let wrong = "";
  for (const [thing, outcome] of done) {
    try {
      wrong ||= refused(await act(...action.undo(thing, outcome)));
    } catch (error) {
      wrong ||= error.message;
    }
  }
  toast(wrong ? `It could not be taken back: ${wrong}` : "It is taken back.", { bad: Boolean(wrong) });
}
