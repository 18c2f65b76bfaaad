// A view that is one list: its filters, its chips, its empty states and its rows.

import { h } from "./dom.js";
import { go } from "./route.js";
import { List } from "./list.js";
import { paintHead } from "./head.js";
import { filtered, isFiltered, tally } from "./filter.js";
import { loading, nothingFits } from "./empty.js";
import { STATE_TONES } from "./rows.js";
import { plural } from "./format.js";

/** The function `open` of a view:
 *
 *   title, search, noun      words: of the head, in the search box, for one row
 *   items()                  what was read, or nothing yet
 *   state, states, words     the state of an item, those that have a chip, and other words for them
 *   order                    the order of the rows
 *   text, facets             what the search box looks at
 *   key, version, row, size  as a List wants them
 *   kind, thing              the kind of a row for its actions, and what it opens
 *   first()                  the empty state: what to do first
 *   top(place, items)        paints what is above the list
 */
export function listView(of) {
  const chips = { state: of.state };
  return (place) => {
    const list = new List(place, {
      row: of.row,
      key: of.key,
      version: of.version || JSON.stringify,
      open: (item) => of.thing(item) && go({ show: of.thing(item) }),
      label: of.title,
      size: of.size,
    });
    list.kindOf = () => of.kind;
    const none = h("div");
    const top = h("div.top");
    place.append(top, none, list.element);
    return { list, close: () => list.close(), paint: (params) => paint(of, chips, params, list, none, top) };
  };
}

function paint(of, chips, params, list, none, top) {
  const all = of.items();
  const shown = filtered(all || [], params, { chips, text: of.text, facets: of.facets });
  shown.sort(of.order);
  const numbers = tally(all || [], of.state);
  paintHead({
    title: of.title,
    search: of.search,
    summary: all ? plural(shown.length, of.noun) : "",
    chips: [
      {
        name: "state",
        options: of.states.map((each) => [
          each,
          of.words?.[each] || each,
          numbers.get(each) || 0,
          STATE_TONES[each],
        ]),
      },
    ],
    bulk:
      isFiltered(params, chips) && shown.length ? { kind: of.kind, items: shown, noun: of.noun } : null,
  });
  of.top?.(top, all);
  none.replaceChildren(
    ...(!all ? [loading()] : !all.length ? [of.first()] : !shown.length ? [nothingFits()] : []),
  );
  list.setItems(shown);
}
