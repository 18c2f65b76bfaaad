// Filters: words and facets from the search box, and the chosen chips, all from the address.

/** `web holder:bob "two words" -label:db` as a list of {facet, word, not}. */
export function parse(text) {
  const found = [];
  for (const [, not, facet, quoted, plain] of (text || "").matchAll(
    /(-)?(?:([a-z]+):)?(?:"([^"]*)"|(\S+))/g,
  )) {
    const word = (quoted ?? plain ?? "").toLowerCase();
    if (word) found.push({ not: Boolean(not), facet: facet || "", word });
  }
  return found;
}

/** Whether an item fits: `text` is all its words, `facets` its fields, each a text or a list. */
export function fits(parsed, text, facets) {
  return parsed.every(({ not, facet, word }) => {
    const known = facet && facet in facets;
    const has = known
      ? [facets[facet]].flat().some((each) => String(each).toLowerCase().includes(word))
      : text.toLowerCase().includes(facet ? `${facet}:${word}` : word);
    return has !== not;
  });
}

/** The items that fit the words of the address and its chips. */
export function filtered(items, params, { text, facets, chips = {} }) {
  const parsed = parse(params.q);
  const chosen = Object.entries(chips).map(([name, of]) => [
    params[name] ? new Set(params[name].split(",")) : null,
    of,
  ]);
  return items.filter(
    (each) =>
      chosen.every(([set, of]) => !set || [of(each)].flat().some((value) => set.has(value))) &&
      (!parsed.length || fits(parsed, text(each), facets ? facets(each) : {})),
  );
}

/** Whether the address filters anything in a view. */
export const isFiltered = (params, chips = {}) =>
  Boolean(params.q || Object.keys(chips).some((name) => params[name]));

/** How many items have each value, by the value. */
export function tally(items, of) {
  const found = new Map();
  for (const each of items)
    for (const value of [of(each)].flat()) found.set(value, (found.get(value) || 0) + 1);
  return found;
}
