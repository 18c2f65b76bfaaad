// What is shown is in the address: the view, its filters and the open thing.  A link restores it.

const listeners = [];

/** The parameters of the address. */
export function params() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

/** Change some parameters ("" removes one); with `replace` without an entry in the history. */
export function go(changes, { replace = false } = {}) {
  const next = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) next.delete(name);
    else next.set(name, value);
  }
  const words = next.toString().replaceAll("%2F", "/").replaceAll("%2C", ",").replaceAll("%3A", ":");
  const url = words ? `/?${words}` : "/";
  if (url === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  changed();
}

/** Another view: its own filters, none of the last one; what is open stays closed. */
export function goView(view, filters = {}) {
  const none = Object.fromEntries(Object.keys(params()).map((name) => [name, ""]));
  go({ ...none, view: view === "now" ? "" : view, ...filters });
}

/** The address of a view with filters, for links. */
export function linkTo(view, filters = {}) {
  return `/?${new URLSearchParams({ view, ...filters })}`;
}

export function onRoute(listener) {
  listeners.push(listener);
}

function changed() {
  for (const each of listeners) each(params());
}

addEventListener("popstate", changed);
